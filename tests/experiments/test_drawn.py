"""Drawn weights: their size from shapes alone, and a machine that cannot hold them refused before anything starts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hydra import compose, initialize_config_dir

from experiments import composition, drawn, preview, schema, study
from experiments.child import ROOT
from experiments.comparison import runner
from experiments.errors import ConfigError
from experiments.spec import CellSpec, LauncherSpec, ModelSpec, SpeculationSpec, StudySpec
from ling_runtime.config import ModelConfig
from ling_runtime.draft_config import DraftConfig
from ling_runtime.dummy import DummyTensors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CPU = torch.device("cpu")
STUDY = StudySpec(study="s")


@pytest.fixture
def cell(make_cell: Callable[..., CellSpec], checkpoint: Path) -> CellSpec:
    return make_cell(model=ModelSpec(name="tiny", path=str(checkpoint), weights="drawn"))


def on(cell: CellSpec, **engine: Any) -> CellSpec:
    return replace(cell, engine=replace(cell.engine, **engine))


def nbytes(config: ModelConfig | DraftConfig, **part: int) -> int:
    return sum(tensor.nbytes for tensor in DummyTensors(config, seed=0, device=CPU, **part).values())


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_size_is_that_of_what_a_rank_draws(cell: CellSpec, checkpoint: Path, ranks: int) -> None:
    config = ModelConfig.from_pretrained(checkpoint)
    kept = drawn.rank_bytes(on(cell, dtype="bfloat16", tp_size=ranks))
    assert kept == nbytes(config, rank=ranks - 1, size=ranks)
    numbers = sum(t.numel() for t in DummyTensors(config, seed=0, device=CPU, rank=0, size=ranks).values())
    assert drawn.rank_bytes(on(cell, dtype="float32", tp_size=ranks)) == 4 * numbers


def test_the_layer_that_drafts_counts_where_it_does_and_so_does_a_draft(cell: CellSpec, draft: Path) -> None:
    alone = drawn.rank_bytes(replace(cell, speculation=SpeculationSpec()))
    assert alone < drawn.rank_bytes(cell)
    blocks = SpeculationSpec(algorithm="dspark", block_size=8, draft_path=str(draft))
    both = drawn.rank_bytes(on(replace(cell, speculation=blocks), dtype="bfloat16"))
    alone = drawn.rank_bytes(on(replace(cell, speculation=SpeculationSpec()), dtype="bfloat16"))
    assert both - alone == nbytes(DraftConfig.from_pretrained(draft))


def test_ranks_on_a_cpu_share_its_memory_and_devices_have_their_own(cell: CellSpec) -> None:
    two = on(cell, tp_size=2)
    assert drawn.machine_bytes(two) == 2 * drawn.rank_bytes(two) > drawn.machine_bytes(cell)
    assert drawn.machine_bytes(on(cell, device="cuda")) == 0


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawn, "available_bytes", lambda: 2**16)


def test_weights_that_do_not_fit_are_refused_where_they_would_be_drawn(
    cell: CellSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = drawn.machine_bytes(cell)
    monkeypatch.setattr(drawn, "available_bytes", lambda: size)
    drawn.check_memory(cell, STUDY)
    monkeypatch.setattr(drawn, "available_bytes", lambda: size - 1)
    with pytest.raises(ConfigError, match=r"^model\.weights: drawn on engine\.device=cpu they are .* are available"):
        drawn.check_memory(cell, STUDY)
    drawn.check_memory(on(cell, device="cuda"), STUDY)
    drawn.check_memory(replace(cell, model=replace(cell.model, weights="checkpoint")), STUDY)
    for elsewhere in ({"dry_run": True}, {"preflight": True}, {"launcher": LauncherSpec(name="slurm")}):
        drawn.check_memory(cell, replace(STUDY, **elsewhere))


def main(*overrides: str) -> int:
    schema.register()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return study.main(composition.expand(compose("config", [*overrides, "model.weights=drawn", "tracking=none"])))


@pytest.mark.usefixtures("little")
def test_a_run_ends_before_anything_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(f"output_dir={tmp_path}/out") == 2
    assert "model.weights: drawn on engine.device=cpu" in json.loads(capsys.readouterr().out)["error"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("little")
def test_so_does_an_arm_of_a_comparison(cell: CellSpec, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^model\.weights: drawn on engine\.device=cpu"):
        runner.prepared("base", cell, replace(STUDY, output_dir=str(tmp_path)), base=cell, declared=None)


@pytest.mark.usefixtures("little")
def test_preflight_counts_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("preflight=true", f"output_dir={tmp_path}/out") == 3
    out = capsys.readouterr().out
    assert re.search(r"MISSING memory +0\.0 GiB available for 0\.\d+ GiB of drawn weights", out)
    assert json.loads(out.splitlines()[-1])["preflight"]["memory"] is False


@pytest.mark.process
def test_counting_needs_no_torch() -> None:
    code = f"import sys, {study.__name__}, {preview.__name__}, {drawn.__name__}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False).returncode == 0
