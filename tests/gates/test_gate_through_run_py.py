"""Gates through the front door: run.py on the fake engine and on real builds, with its record and its exit code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from builds import CHECKPOINT

from gates.__main__ import main
from tests.experiments.driver import FAKE_ENGINE, fake_command, small, start
from tests.fakes.checkpoint import write_checkpoint

REAL = ("engine.ready_timeout_s=60", "machine.pin_cores=false")

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def record(checkpoint, tmp_path_factory) -> str:
    file = tmp_path_factory.mktemp("golden") / "tiny.json"
    engine = f"engine.command=[{sys.executable},{FAKE_ENGINE}]"
    gate = ("gate.parity_prompts=2", "gate.parity_tokens=64")
    assert main(["record", f"model.path={checkpoint}", engine, *gate, "--out", str(file)]) == 0
    return f"gate.golden={file}"


def planted(fault: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "tests.fakes.planted", fault)


def record_of(cell: dict) -> dict:
    return json.loads(Path(cell["record"]).read_text())


def test_a_single_run_that_equals_its_golden_record_is_a_baseline(checkpoint, record, tmp_path):
    run = start(small(tmp_path, checkpoint, record), tmp_path)
    (cell,) = run.line["cells"]
    assert (run.code, cell["status"], cell["verdict"]) == (0, "valid", "baseline")
    filed = record_of(cell)
    assert (filed["rule"], filed["role"]) == ("golden", "baseline")
    assert {filed["gates"][gate]["status"] for gate in ("byte_parity", "logit_digest", "accept_drift")} == {"pass"}


def test_a_single_run_that_does_not_is_rejected(checkpoint, record, tmp_path):
    run = start(small(tmp_path, checkpoint, record, engine=fake_command("other_tokens")), tmp_path)
    (cell,) = run.line["cells"]
    assert (run.code, cell["verdict"]) == (1, "reject")
    assert record_of(cell)["rule"] == "gate:byte_parity"
    assert "against the golden record" in cell["reason"]


def test_a_record_of_other_weights_ends_a_run_before_it_starts(record, tmp_path):
    other = write_checkpoint(tmp_path / "other")
    (other / "model.safetensors").write_bytes(b"other weights")
    run = start(small(tmp_path, other, record), tmp_path)
    assert run.code == 2
    assert "gate.golden" in run.err
    assert not list((tmp_path / "out").rglob("record.json"))


def test_cells_of_a_sweep_have_each_other_and_no_golden_record(checkpoint, record, tmp_path):
    run = start(small(tmp_path, checkpoint, record, "cells=[['speculation=none'],['speculation=nextn']]"), tmp_path)
    first, second = (record_of(cell) for cell in run.line["cells"])
    assert (first["rule"], first["gates"]["byte_parity"]["reason"]) == ("no_baseline", "no baseline")
    assert second["gates"]["byte_parity"]["status"] == "pass"


def test_drafts_verified_only_for_logprobs_look_best_and_are_rejected(tmp_path):
    """Accept length is the window, every probe is right, and yet no user gets the target's tokens."""
    build = ",".join(planted("verified_for_logprobs"))
    cells = f"cells=[['speculation=none'],['speculation=nextn','engine.command=[{build}]']]"
    gate = ("gate.parity_prompts=2", "gate.parity_tokens=16")
    overrides = (cells, "engine.command=[]", *REAL, *gate)
    run = start(small(tmp_path, CHECKPOINT, *overrides), tmp_path)
    clean, candidate = run.line["cells"]
    assert (run.code, clean["verdict"], candidate["verdict"]) == (1, "baseline", "reject")
    assert candidate["accept_length"] == pytest.approx(4.0, abs=0.3)
    filed = record_of(candidate)
    assert filed["rule"] == "gate:state_pollution"
    assert "without logprobs" in filed["reason"]
    assert filed["gates"]["byte_parity"]["status"] == filed["gates"]["logit_digest"]["status"] == "pass"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "gate"),
    [
        ("none", None),
        ("stale_extend", "accept_drift"),
        ("wrong_row", "byte_parity"),
        ("leaked_seed", "state_pollution"),
    ],
)
def test_a_single_real_run_meets_the_shipped_golden_record(tmp_path, fault, gate):
    run = start(small(tmp_path, CHECKPOINT, *REAL, engine=planted(fault)), tmp_path)
    (cell,) = run.line["cells"]
    assert record_of(cell)["rule"] == (f"gate:{gate}" if gate else "golden")
    assert run.code == (1 if gate else 0)


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "code", "status"), [("none", 0, "valid"), ("kernel_ignored", 3, "invalid")])
def test_a_variant_that_is_asked_for_and_does_not_run_is_invalid(tmp_path, fault, code, status):
    build = ",".join(planted(fault))
    cells = f"cells=[[],['kernels.moe_align=pair_axis','engine.command=[{build}]']]"
    gate = ("gate.parity_prompts=2", "gate.parity_tokens=16")
    run = start(small(tmp_path, CHECKPOINT, cells, "engine.command=[]", *REAL, *gate), tmp_path)
    candidate = record_of(run.line["cells"][1])
    assert (run.code, candidate["status"]) == (code, status)
    if fault != "none":
        assert candidate["rule"] == "inactive"
        assert "kernels.moe_align=pair_axis was asked for; active: reference" in candidate["reason"]
