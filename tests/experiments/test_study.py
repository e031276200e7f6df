"""Whole studies on the fake engine: records, baselines, verdicts, and cells that fail without stopping others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from experiments.status import collect
from tests.experiments.driver import Run, fake_command, faulty, small, start
from tests.fakes import language

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.process

RECORD_KEYS = {
    "schema", "name", "study", "attempt", "identity", "status", "failure", "role", "baseline", "verdict", "rule",
    "reason", "change", "axes", "metrics", "task", "gates", "activation", "ruler", "flags", "environment",
    "started_utc", "ended_utc", "duration_s", "invocation", "stages", "baseline_identity", "findings",
}  # fmt: skip
FILES = {
    "spec.yaml", "command.txt", "server.log", "bench.log", "bench.jsonl", "requests.jsonl", "gate.json",
    "environment.json", "record.json",
}  # fmt: skip


def record(run: Run, cell: int = 0) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(Path(run.line["cells"][cell]["record"]).read_text())
    return read


def test_a_single_run_is_a_baseline_with_all_its_files(run_py: Callable[..., Run]) -> None:
    run = run_py()
    assert run.code == 0, run.err
    (cell,) = run.line["cells"]
    assert (cell["name"], cell["status"], cell["verdict"]) == ("nextn-3-4", "valid", "baseline")
    assert cell["accept_length"] == pytest.approx(language.accept_length(16, 4))
    assert {path.name for path in Path(cell["record"]).parent.iterdir()} == FILES
    kept = record(run)
    assert kept.keys() == RECORD_KEYS
    assert kept["metrics"]["mean_tpot_ms"] == cell["mean_tpot_ms"]
    assert kept["gates"]["state_pollution"]["status"] == "pass"
    assert kept["activation"]["ok"] is True


def test_candidates_are_compared_with_the_first_cell(quickstart: Run) -> None:
    run = quickstart
    assert run.code == 0, run.err
    assert [cell["name"] for cell in run.line["cells"]] == ["none", "nextn-3-4", "nextn-5-6"]
    assert [cell["verdict"] for cell in run.line["cells"]] == ["baseline", "inconclusive", "inconclusive"]
    assert [decision["baseline"] for decision in run.line["decisions"]] == ["none", "none"]
    last = record(run, 2)
    assert last["change"]["class"] == "speculation"
    assert last["gates"]["byte_parity"]["status"] == "pass"
    assert last["axes"]["speculation.num_steps"] == 5
    assert last["ruler"] == record(run, 0)["ruler"]
    assert last["task"]["questions"] == 3
    lines = (Path(run.line["cells"][2]["record"]).parent / "task.jsonl").read_text().splitlines()
    assert [json.loads(line)["predicted"] for line in lines] == [42, 42, 42]
    for name in ("none", "nextn-3-4", "nextn-5-6"):
        assert name in run.out


def test_the_orchestrator_adds_less_than_five_seconds_to_a_cell(quickstart: Run) -> None:
    rows = collect(quickstart.directory / "out")
    assert len(rows) == 3
    for row in rows:
        assert row.stages.keys() >= {"start", "launch", "warm-up", "bench", "task", "gates", "stop"}
        assert sum(row.stages.values()) == pytest.approx(row.duration_s, abs=0.2)
        assert 0.0 < row.own_s < 5.0


# steps: (fault, status, verdict, rule, phase of the failure, words in the reason)
BAD = {
    2: ("die_at_start", "invalid", None, "infrastructure", "launch", "ended with code 7 before it was ready"),
    3: ("die_mid_stream", "invalid", None, "infrastructure", "bench", "ended with code -9 while it was in use"),
    4: ("drop_mid_stream", "invalid", None, "infrastructure", "bench", "asked for 16 tokens, the engine counted"),
    5: ("no_verify_counts", "invalid", None, "infrastructure", "bench", "no verify count"),
    6: ("impossible_counts", "invalid", None, "impossible_value", None, "outside [1, W = 7]"),
    7: ("other_tokens", "valid", "reject", "gate:byte_parity", None, "byte_parity"),
    8: ("pollute", "valid", "reject", "gate:state_pollution", None, "state_pollution"),
}


@pytest.fixture(scope="module")
def bad_sweep(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Run:
    """A good cell, one of each kind of bad ones, and a good one again."""
    directory = tmp_path_factory.mktemp("sweep")
    engine = faulty(directory, {steps: fault for steps, (fault, *_) in BAD.items()})
    steps = ",".join(map(str, (1, *BAD, 9)))
    overrides = (f"speculation.num_steps={steps}", "workload.num_prompts=4", "gate.parity_tokens=64", "-m")
    return start(small(directory, checkpoint, *overrides, engine=engine), directory)


def test_failing_cells_do_not_stop_the_others(bad_sweep: Run) -> None:
    assert bad_sweep.code == 3
    names = [cell["name"] for cell in bad_sweep.line["cells"]]
    assert names == [f"nextn-{steps}-{steps + 1}" for steps in (1, *BAD, 9)]
    verdicts = [cell["verdict"] for cell in bad_sweep.line["cells"]]
    assert (verdicts[0], verdicts[-1]) == ("baseline", "inconclusive")
    for name in names:
        assert name in bad_sweep.out


@pytest.mark.parametrize("steps", BAD)
def test_known_bad_cells(bad_sweep: Run, steps: int) -> None:
    fault, status, verdict, rule, phase, reason = BAD[steps]
    bad = record(bad_sweep, steps - 1)
    assert (bad["status"], bad["verdict"], bad["rule"]) == (status, verdict, rule)
    assert reason in bad["reason"]
    assert (bad["failure"] and bad["failure"]["phase"]) == phase
    if fault.startswith("die"):
        assert "on purpose" in bad["failure"]["log_tail"]
        assert bad["failure"]["log_tail"] in bad_sweep.err
    if fault == "impossible_counts":
        assert bad["metrics"]["accept_length"] == 15.0, "shown, not hidden"


def test_if_the_first_cell_fails_the_next_valid_one_is_the_baseline(run_py: Callable[..., Run], tmp_path: Path) -> None:
    engine = faulty(tmp_path, {1: "die_at_start", 2: "speculation_ignored"})
    run = run_py("speculation.num_steps=1,2,3,4", "-m", engine=engine)
    assert run.code == 3
    assert [cell["verdict"] for cell in run.line["cells"]] == [None, None, "baseline", "inconclusive"]
    assert run.line["decisions"][0]["baseline"] == "nextn-3-4"


def test_a_rejected_cell_is_nobody_s_baseline(run_py: Callable[..., Run], tmp_path: Path) -> None:
    run = run_py("speculation.num_steps=1,2,3", "gate.parity_tokens=64", "-m", engine=faulty(tmp_path, {1: "pollute"}))
    assert run.code == 1
    assert [cell["verdict"] for cell in run.line["cells"]] == ["reject", "baseline", "inconclusive"]
    assert run.line["decisions"][0]["baseline"] == "nextn-2-3"


def test_a_speculation_that_was_ignored_is_inactive(run_py: Callable[..., Run]) -> None:
    unasked = ("--speculative-algorithm", "NEXTN", "--speculative-num-draft-tokens", "4")
    run = run_py("speculation=none", engine=(*fake_command(), *unasked))
    kept = record(run)
    assert (run.code, kept["status"], kept["rule"]) == (3, "invalid", "inactive")
    assert kept["activation"]["observed"]["speculation.algorithm"] == "nextn"


def test_step_times_that_disagree_are_flagged(run_py: Callable[..., Run]) -> None:
    run = run_py(engine=fake_command("wrong_steps", step_ms=4.0))
    (remark,) = [flag for flag in record(run)["flags"] if "step time" in flag]
    assert "off the server's own" in remark


def test_resume_takes_over_what_is_valid_and_measures_the_rest(
    run_py: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # or an edit between the two runs would change the identity
    first = run_py("speculation.num_steps=1,2", "-m", engine=faulty(tmp_path, {2: "die_at_start"}))
    engine = faulty(tmp_path, {})
    second = run_py("speculation.num_steps=1,2", "resume=true", "-m", engine=engine)
    assert (first.code, second.code) == (3, 0)
    assert second.line["cells"][0]["record"] == first.line["cells"][0]["record"]
    assert record(second, 1)["attempt"] == 2
    assert second.line["cells"][1]["verdict"] == "inconclusive"


def test_resume_measures_anew_what_was_judged_without_its_baseline(
    run_py: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    first = run_py("speculation.num_steps=1,2", "-m", engine=faulty(tmp_path, {1: "die_at_start"}))
    assert first.line["cells"][1]["verdict"] == "baseline", "the first cell that is valid"
    second = run_py("speculation.num_steps=1,2", "resume=true", "-m", engine=faulty(tmp_path, {}))
    assert [cell["verdict"] for cell in second.line["cells"]] == ["baseline", "inconclusive"]
    assert record(second, 1)["baseline"] == "nextn-1-2"


def test_cells_under_different_loads_get_no_verdict(run_py: Callable[..., Run]) -> None:
    run = run_py("workload.output_len=16,32", "-m")
    kept = record(run, 1)
    assert (run.code, kept["verdict"], kept["rule"]) == (3, None, "ruler")
    assert "load differs: baseline 16 tokens a request, 1 at once, candidate 32 tokens" in kept["reason"]


def test_gates_switched_off_decide_nothing(run_py: Callable[..., Run]) -> None:
    run = run_py("speculation.num_steps=1,2", "gate=off", "-m")
    assert run.code == 0, run.err
    assert run.line["cells"][1]["verdict"] == "inconclusive"
    assert set(run.line["cells"][1]["gates"].values()) == {"not_applicable"}
