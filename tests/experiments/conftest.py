"""A checkpoint without weights, a cell on the fake engine, and run.py as a child with both."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from experiments.spec import (
    CellSpec,
    EngineSpec,
    GateSpec,
    ModelSpec,
    SpeculationSpec,
    TaskSpec,
    WorkloadSpec,
)
from experiments.store import create
from tests.experiments.driver import Run, fake_command, small, start
from tests.fakes.checkpoint import write_checkpoint, write_draft

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained for blocks of 8, for the checkpoint."""
    return write_draft(tmp_path_factory.mktemp("draft"))


@pytest.fixture
def make_cell(checkpoint: Path) -> Callable[..., CellSpec]:
    """A cell on the fake engine; keywords replace whole groups, `faults` goes to the engine."""

    def make(*faults: str, **groups: Any) -> CellSpec:
        cell = CellSpec(
            engine=EngineSpec(command=fake_command(*faults), ready_timeout_s=10.0),
            model=ModelSpec(name="tiny", path=str(checkpoint)),
            speculation=SpeculationSpec(algorithm="nextn", num_steps=3, num_draft_tokens=4),
            workload=WorkloadSpec(name="problems", num_prompts=2, output_len=16, warmup_prompts=1, num_shots=1),
            task=TaskSpec(),
            gate=GateSpec(parity_prompts=2, parity_tokens=16, pollution_requests=2),
        )
        return replace(cell, **groups)

    return make


@pytest.fixture
def run_py(tmp_path: Path, checkpoint: Path) -> Callable[..., Run]:
    def run(*overrides: str, engine: tuple[str, ...] | None = None) -> Run:
        return start(small(tmp_path, checkpoint, *overrides, engine=engine), tmp_path)

    return run


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Run:
    """The preset, tracked, on the fake engine."""
    directory = tmp_path_factory.mktemp("quickstart")
    overrides = ("experiment=quickstart", "task.num_questions=3", "task.num_shots=1", "tracking=mlflow")
    return start(small(directory, checkpoint, *overrides), directory)


@pytest.fixture(scope="session")
def blank_store(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Puts an empty store under a name; MLflow would need seconds for each."""
    blank = tmp_path_factory.mktemp("store") / "blank.db"
    create(blank)
    return lambda path: shutil.copy(blank, path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mounts a file system of so many bytes; whoever may not mount skips the test."""
    with ExitStack() as mounted:

        def mount(size: int) -> Path:
            disk = tmp_path / "disk"
            disk.mkdir()
            done = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)], capture_output=True
            )
            if done.returncode:
                pytest.skip(f"cannot mount: {done.stderr.decode().strip()}")
            mounted.callback(subprocess.run, ["umount", "--lazy", str(disk)], check=True)
            return disk

        yield mount
