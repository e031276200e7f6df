"""The ledger: every decision with rule, figures and evidence, and the publication's own flag table run through it."""

from __future__ import annotations

import csv
import io
import json
from math import expm1, log
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from analysis.__main__ import main
from gates import accept_drift, task_score
from gates.applicability import GATES
from gates.change import Change
from gates.evidence import Accept, GateResult, TaskAnswers
from gates.verdict import decide
from tests.analysis.made import BASE, BROKEN, CAMPAIGN, CELLS, DECISIONS, cell, decision, write

if TYPE_CHECKING:
    from gates.change import ChangeClass

FLAGS = Path(__file__).parent / "data/published_flags.csv"
ORIGIN = "from the publication's table of flags"


def ledger(directory: Path, capsys: pytest.CaptureFixture[str], format_: str = "json") -> str:
    assert main(["decisions", str(directory), "--format", format_]) == 0
    return capsys.readouterr().out


def entries(directory: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in json.loads(ledger(directory, capsys))["decisions"]}


def test_decisions_come_first_and_cells_that_had_none_after_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = entries(write(tmp_path, *CELLS, *DECISIONS, campaign=CAMPAIGN), capsys)
    assert [(name, one["kind"], one["verdict"]) for name, one in found.items()] == [
        ("overlap", "change", "keep"),
        ("pinned", "change", "reject"),
        ("loud", "change", "inconclusive"),
        ("broken", "cell", None),
    ]
    kept = found["overlap"]
    assert kept["step_time"] == {"estimate": -0.12, "low": -0.13, "high": -0.11, "source": "paired"}
    assert (kept["accept"]["high"], kept["mde"], kept["floor"], kept["blocks"]) == (0.0085, 0.012, 0.0123, 16)
    assert kept["evidence"] == "tuning/decisions/overlap/attempt-1/decision.json"
    assert found["broken"]["reason"] == "launch (launch): exit code 7"
    assert found["broken"]["tpot"] is None


def test_a_ratio_of_simulated_accept_lengths_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forced = cell("deeper", 2.0, 4.0)
    forced["metrics"]["accept_source"] = "simulated"
    (kept, *_) = DECISIONS
    paired = kept | {"accept_source": "simulated"}
    directory = write(tmp_path, *CELLS, forced, paired)
    found = entries(directory, capsys)
    assert {name for name, one in found.items() if one["accept"] and one["accept"].get("simulated")} == {
        "deeper",
        kept["name"],
    }
    assert all("simulated" not in (one["tpot"] or {}) for one in found.values())
    assert ledger(directory, capsys, "table").count(" simulated") == 2


def test_a_ratio_of_two_cells_says_that_nothing_was_paired(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = entries(write(tmp_path, BASE, cell("deeper", 2.0, 4.0), BROKEN), capsys)
    tpot = found["deeper"]["tpot"]
    assert tpot["source"] == "unpaired"
    assert expm1(tpot["estimate"]) == pytest.approx(2.0 / BASE["metrics"]["mean_tpot_ms"] - 1)
    assert (tpot["low"], tpot["high"]) == (None, None)


def test_csv_and_json_hold_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write(tmp_path, *CELLS, *DECISIONS)
    found = entries(directory, capsys)
    for row in csv.DictReader(io.StringIO(ledger(directory, capsys, "csv"))):
        one = found[row["name"]]
        assert row["verdict"] == (one["verdict"] or "")
        assert row["step_time_estimate"] == ("" if one["step_time"] is None else str(one["step_time"]["estimate"]))
        assert row["gates"] == ";".join(f"{name}={status}" for name, status in one["gates"].items())


def test_the_table_tells_rule_reason_and_evidence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = ledger(write(tmp_path, *CELLS, *DECISIONS), capsys, "table")
    assert "-11.3% [-12.2%, -10.4%]" in text
    assert "overlap: faster: as the interval says" in text
    assert "hypothesis: overlap saves a launch" in text
    assert "evidence: tuning/decisions/overlap/attempt-1/decision.json" in text


def published(class_: ChangeClass, bound: float, reason: str | None = None) -> dict[str, Any]:
    """The row of the table that was kept, as a decision: its figures, the gates and verdict of this program."""
    before, after = csv.DictReader(FLAGS.read_text().splitlines())
    change = Change(class_=class_, parts=(after["flag"],), declared="declared" if reason else None, reason=reason)
    accepts = [Accept(length=float(row["accept"]), source="measured") for row in (before, after)]
    seen = {"accept_drift": accept_drift.compare(*accepts, bound=accept_drift.bound_of(change, bound), required=True)}
    if reason:
        answers = TaskAnswers(
            name="gsm8k", data_hash="d", correct=(True,) * 500, invalid_rate=0, stop_rate=1, truncation_rate=0
        )
        seen["task_score"] = task_score.compare(answers, answers, floor=None, required=True)
    gates = [seen.get(name) or unpublished(name) for name in GATES]
    verdict = decide(change, gates)
    arms = {arm: arm_of(row) for arm, row in (("baseline", before), ("candidate", after))}
    return decision(class_, 0.0, verdict.verdict, verdict.rule) | {
        "reason": verdict.reason,
        "origin": ORIGIN,
        "change": {"class": class_, "parts": [*change.parts], "declared": change.declared, "reason": reason},
        "arms": {"baseline": {"cell": before["flag"]}, "candidate": {"cell": after["flag"]}},
        "gates": {gate.name: gate_of(gate) for gate in gates},
        "figures": arms,
        "criterion": None,
        "comparison": None,
        "floor": None,
    }


def unpublished(name: str) -> GateResult:
    return GateResult(name=name, status="pass", required=True, reason="not published; passed, as the fixture has it")


def arm_of(row: dict[str, str]) -> dict[str, float]:
    """Its step time is the publication's own product."""
    accept, tpot = float(row["accept"]), float(row["mean_tpot_ms"])
    return {"accept_length": accept, "mean_tpot_ms": tpot, "step_ms": accept * tpot}


def gate_of(gate: GateResult) -> dict[str, Any]:
    return {"status": gate.status, "required": gate.required, "reason": gate.reason, "evidence": gate.evidence}


def test_the_published_fused_verify_is_rejected_where_it_was_called_bitwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Row 5 of the fixture: a better accept length is a drift like a worse one."""
    found = entries(write(tmp_path, published("bitwise", 0.25)), capsys)["bitwise"]
    assert (found["verdict"], found["rule"]) == ("reject", "gate:accept_drift")
    assert "4.49 -> 4.68: |+0.190| > 0.05" in found["reason"]
    assert found["origin"] == ORIGIN


def test_the_same_with_rounding_declared_passes_its_gates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Row 6. That it was faster nobody can decide from two printed means, and the ledger says so."""
    directory = write(tmp_path, published("rounding", 0.25, "the recurrence is summed in one pass"))
    found = entries(directory, capsys)["rounding"]
    assert (found["verdict"], found["rule"], found["reason"]) == ("inconclusive", "no_ab", "gates passed, no A/B")
    assert set(found["gates"].values()) == {"pass"}
    assert found["declared"] == "the recurrence is summed in one pass"
    assert found["tpot"] == {"estimate": log(1.34 / 1.48), "low": None, "high": None, "source": "published"}
    assert found["step_time"]["estimate"] == pytest.approx(log(1.34 * 4.68 / (1.48 * 4.49)))
    text = ledger(directory, capsys, "table")
    assert "-9.5% published" in text
    assert f"figures: {ORIGIN}" in text
