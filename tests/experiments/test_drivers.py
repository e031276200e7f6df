"""Several drivers at once on one sweep: each cell is measured once, every driver tells all, MLflow has it whole."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from mlflow.store.entities import PagedList
from mlflow.tracking import MlflowClient

from experiments.filing import LONGEST, Shelf
from experiments.plan import Invocation
from experiments.record import read
from experiments.spec import StudySpec
from experiments.tracking import open_tracker
from tests.experiments.driver import attempts, begin, faulty, finish, small, start, wait_for_stage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.experiments.driver import Run

pytestmark = [pytest.mark.process, pytest.mark.whole]

CALL = Invocation(id="0123456789ab", cells=1, started_utc="2026-01-02T03:04:00+00:00")
QUICK = ("study=s", "resume=true", "workload.num_prompts=1", "workload.warmup_prompts=0", "gate=off")


@pytest.fixture(autouse=True)
def same_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit while drivers start would give each another identity."""
    monkeypatch.setenv("GIT_DIR", "/nowhere")


def grid(cells: int) -> str:
    return f"sweep.grid={{+env.A:[{','.join(map(str, range(cells)))}]}}"


def told(run: Run) -> list[tuple[str, str, str]]:
    """All but the order in which they came."""
    return [(cell["name"], cell["status"], cell["record"]) for cell in run.line["cells"]]


@pytest.mark.parametrize(
    ("drivers", "cells"), [(3, 6), pytest.param(10, 30, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_each_cell_is_measured_once_and_all_of_them_are_everywhere(
    tmp_path: Path, checkpoint: Path, drivers: int, cells: int
) -> None:
    command = small(tmp_path, checkpoint, *QUICK, grid(cells), "tracking=mlflow")
    runs = [finish(process, tmp_path, 1700) for process in [begin(command, tmp_path) for _ in range(drivers)]]
    for run in runs:
        assert run.code == 0, run.err
        assert "untracked" not in run.line
        assert told(run) == told(runs[0])
    assert [status for _, status, _ in told(runs[0])] == ["valid"] * cells
    assert len({*attempts(tmp_path / "out")}) == cells, "none was measured twice"
    records = [read(attempt) for attempt in attempts(tmp_path / "out")]
    assert [record["role"] for record in records].count("baseline") == 1
    assert len({record["environment"]["host"] for record in records}) == 1
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/out/mlflow.db")
    (experiment,) = [found for found in client.search_experiments() if found.name == "s"]
    filed = [*client.search_runs([experiment.experiment_id])]
    (parent,) = [run for run in filed if "mlflow.parentRunId" not in run.data.tags]
    children = [run for run in filed if run is not parent]
    assert sorted(str(run.info.run_name) for run in children) == sorted(record["name"] for record in records)
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    assert {run.info.status for run in filed} == {"FINISHED"}
    note = parent.data.tags["mlflow.note.content"]
    assert len(note) == LONGEST or all(record["name"].replace("_", r"\_") in note for record in records)


def record(number: int, status: str) -> dict[str, Any]:
    failure = None if status == "valid" else {"class": "launch", "phase": "launch", "message": "no", "log_tail": ""}
    empty = dict.fromkeys(("verdict", "role", "baseline", "metrics", "task", "ended_utc"))
    return empty | {
        "schema": 1, "name": "none", "study": "s", "identity": "i", "status": status, "attempt": number, "axes": {},
        "gates": {}, "rule": "r", "failure": failure, "reason": "", "environment": {"git_commit": None},
        "started_utc": f"2026-01-02T03:04:0{number}+00:00", "invocation": vars(CALL),
    }  # fmt: skip


def test_a_retried_cell_ends_its_sweep_well_and_what_another_left_is_filed(
    tmp_path: Path, blank_store: Callable[[Path], Path]
) -> None:
    blank_store(tmp_path / "mlflow.db")
    made = []
    for number, status in ((1, "invalid"), (2, "valid")):
        made.append(tmp_path / f"s/none/attempt-{number}")
        made[-1].mkdir(parents=True)
        (made[-1] / "record.json").write_text(json.dumps(record(number, status)))
    elsewhere = tmp_path / "s/other/attempt-1"
    elsewhere.mkdir(parents=True)
    of_another_call = record(1, "valid") | {"name": "other", "invocation": vars(CALL) | {"id": "another"}}
    (elsewhere / "record.json").write_text(json.dumps(of_another_call))
    study = StudySpec(study="s", output_dir=str(tmp_path))
    with open_tracker(study, CALL) as tracker:
        assert tracker.log(made[0])
    with open_tracker(study, CALL) as tracker:
        tracker.complete([made[0], made[1], elsewhere])
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    (experiment,) = [found for found in client.search_experiments() if found.name == "s"]
    runs = {run.data.tags.get("attempt"): run.info.status for run in client.search_runs([experiment.experiment_id])}
    assert runs == {None: "FINISHED", "1": "FAILED", "2": "FINISHED"}


class Pages:
    """A store of 2,500 runs, which gives a thousand at a time."""

    def search_runs(self, experiments: list[str], query: str, page_token: str | None) -> PagedList[int]:
        at = int(page_token or 0)
        return PagedList([*range(at, min(at + 1000, 2500))], str(at + 1000) if at < 2000 else None)


def test_all_runs_are_found_and_not_the_first_thousand(tmp_path: Path) -> None:
    assert Shelf(Pages(), "1", tmp_path)._search("") == [*range(2500)]  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_killed_driver_s_cell_is_another_s_and_a_failure_is_tried_once(tmp_path: Path, checkpoint: Path) -> None:
    engine = faulty(tmp_path, {2: "die_at_start"}, step_ms=20.0)
    command = small(tmp_path, checkpoint, *QUICK, "speculation.num_steps=1,2,3", "-m", engine=engine)
    first = begin(command, tmp_path)
    cell = wait_for_stage(first, tmp_path / "out", "bench").parent
    others = [begin(command, tmp_path) for _ in range(2)]
    first.kill()
    first.communicate()
    runs = [finish(process, tmp_path) for process in others]
    assert told(runs[0]) == told(runs[1])
    assert [status for _, status, _ in told(runs[0])] == ["valid", "invalid", "valid"], runs[0].err
    made = {path.name: len([*path.glob("attempt-*")]) for path in (tmp_path / "out/s").glob("nextn-*")}
    assert made == {"nextn-1-2": 2, "nextn-2-3": 1, "nextn-3-4": 1}
    assert read(cell / "attempt-1")["failure"]["class"] == "unfinished"
    again = start([*command, "--retry", "invalid"], tmp_path)
    assert [read_attempt.rpartition("attempt-")[2][0] for _, _, read_attempt in told(again)] == ["2", "2", "1"]
