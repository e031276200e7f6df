"""A checkpoint without weights, the fake engine as a command, and run.py as a child with both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
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
from tests.fakes.checkpoint import write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
FAKE_ENGINE = ROOT / "tests/fakes/server.py"
FAKE_CLIENT = ROOT / "tests/fakes/load_client"


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


def fake_command(*faults: str, step_ms: float = 0.2) -> tuple[str, ...]:
    flags = [part for fault in faults for part in ("--fault", fault)]
    return (sys.executable, str(FAKE_ENGINE), "--step-ms", str(step_ms), *flags)


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


@dataclass(frozen=True)
class Run:
    code: int
    out: str
    err: str
    directory: Path

    @property
    def line(self) -> dict[str, Any]:
        """The last line of stdout."""
        parsed: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return parsed


def small(directory: Path, checkpoint: Path, *overrides: str, engine: tuple[str, ...] | None = None) -> list[str]:
    """run.py's command line on the fake engine, small and untracked unless overridden."""
    defaults = {
        "engine.command": f"[{','.join(engine or fake_command())}]",
        "engine.ready_timeout_s": "10",
        "model.path": str(checkpoint),
        "output_dir": str(directory / "out"),
        "machine.lock": str(directory / "lock"),
        "tracking": "none",
        "workload.num_prompts": "2",
        "workload.output_len": "16",
        "workload.warmup_prompts": "1",
        "workload.num_shots": "1",
        "gate.parity_prompts": "2",
        "gate.parity_tokens": "16",
        "gate.pollution_requests": "2",
    }
    given = {override.partition("=")[0].lstrip("+") for override in overrides}
    kept = [f"{key}={value}" for key, value in defaults.items() if key not in given]
    return [sys.executable, str(ROOT / "run.py"), *kept, *overrides]


def driver_env() -> dict[str, str]:
    """With the stand-in for SGLang's client, which takes ten seconds to import."""
    return {**os.environ, "PYTHONPATH": str(FAKE_CLIENT)}


def start(command: list[str], directory: Path) -> Run:
    done = subprocess.run(command, env=driver_env(), cwd=directory, capture_output=True, text=True, timeout=200)
    return Run(done.returncode, done.stdout, done.stderr, directory)


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
