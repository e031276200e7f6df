"""MLflow holds what the records hold, and never costs one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mlflow.tracking import MlflowClient

from experiments.spec import StudySpec
from experiments.tracking import METRICS, Tracker, metrics, open_tracker

if TYPE_CHECKING:
    from conftest import Run

pytestmark = pytest.mark.process


def records(run: Run) -> dict[str, dict[str, Any]]:
    paths = [Path(cell["record"]) for cell in run.line["cells"]]
    return {path.parent.parent.name: json.loads(path.read_text()) for path in paths}


def test_a_parent_and_its_children_equal_the_records(quickstart: Run) -> None:
    client = MlflowClient(tracking_uri=f"sqlite:///{quickstart.directory}/out/mlflow.db")
    (experiment,) = [e for e in client.search_experiments() if e.name == "quickstart"]
    runs = client.search_runs([experiment.experiment_id])
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    children = {run.info.run_name: run for run in runs if "mlflow.parentRunId" in run.data.tags}
    assert [parent.info.status for parent in parents] == ["FINISHED"]
    kept = records(quickstart)
    assert children.keys() == kept.keys() == {"none", "nextn-3-4", "nextn-5-6"}
    for name, child in children.items():
        record = kept[name]
        assert child.data.tags["mlflow.parentRunId"] == parents[0].info.run_id
        assert child.data.metrics == pytest.approx(metrics(record))
        for slash, key in METRICS.items():
            assert child.data.metrics[slash] == pytest.approx(record["metrics"][key])
        assert child.data.metrics["task/gsm8k_accuracy"] == record["task"]["accuracy"]
        assert child.data.params == {key: str(value) for key, value in record["axes"].items()}
        assert child.data.tags["identity"] == record["identity"]
        assert child.data.tags["verdict"] == record["verdict"]
        artifacts = {artifact.path for artifact in client.list_artifacts(child.info.run_id)}
        assert {"spec.yaml", "record.json", "bench.jsonl", "task.jsonl"} <= artifacts
    assert children["nextn-3-4"].data.metrics["gate/byte_parity"] == 1.0
    assert "gate/byte_parity" not in children["none"].data.metrics, "not applicable is no number"


class Broken:
    """A store that opened and then went away."""

    def __getattr__(self, name: str) -> Any:
        raise ConnectionError("the tracking server is gone")


def test_a_store_that_goes_away_costs_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tracker = Tracker(Broken(), "1", "study", 1)  # type: ignore[arg-type]
    with tracker:
        tracker.log({"name": "none"}, tmp_path)
    shown = capsys.readouterr().err
    assert f"{tmp_path / 'record.json'} is complete" in shown
    assert shown.count("tracking failed") == 2


def test_an_invalid_cell_is_a_failed_child_without_metrics(tmp_path: Path) -> None:
    study = StudySpec(study="s", output_dir=str(tmp_path))
    record: dict[str, Any] = dict.fromkeys(("verdict", "rule", "role", "baseline", "metrics", "task"))
    record |= {"name": "none", "identity": "i", "status": "invalid", "attempt": 1, "axes": {}, "gates": {}}
    with open_tracker(study, 1) as tracker:
        tracker.log(record | {"environment": {"git_commit": None}}, tmp_path)
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    runs = client.search_runs([e.experiment_id for e in client.search_experiments() if e.name == "s"])
    assert [run.info.status for run in runs] == ["FAILED", "FAILED"]
    assert all(run.data.metrics == {} for run in runs)
