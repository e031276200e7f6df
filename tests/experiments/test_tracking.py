"""MLflow holds what the records hold, costs no record, and gets afterwards what it missed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mlflow.tracking import MlflowClient

from analysis.__main__ import main as analysis
from experiments.errors import ConfigError
from experiments.filing import METRICS, metrics
from experiments.plan import Invocation
from experiments.spec import StudySpec, TrackingSpec
from experiments.store import create
from experiments.tracking import Tracker, open_tracker
from tests.experiments.driver import begin, fake_command, finish, small, wait_for_stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlflow.entities import Run as StoredRun

    from tests.experiments.driver import Run

pytestmark = pytest.mark.process

INVOCATION = Invocation(id="0123456789ab", cells=1, started_utc="2026-01-02T03:04:05+00:00")
RECORD: dict[str, Any] = dict.fromkeys(("verdict", "rule", "role", "baseline", "metrics", "task", "ended_utc")) | {
    "schema": 1,
    "name": "none",
    "study": "s",
    "identity": "i",
    "status": "invalid",
    "attempt": 1,
    "axes": {},
    "gates": {},
    "failure": {"class": "launch"},
    "environment": {"git_commit": None},
    "started_utc": "2026-01-02T03:04:06+00:00",
    "invocation": vars(INVOCATION),
}


def test_each_slash_name_is_the_figure_it_says() -> None:
    """Written out, for a list taken from the program would agree with whatever it says."""
    figures = [
        ("tpot/mean_ms", "mean_tpot_ms"),
        ("tpot/median_ms", "median_tpot_ms"),
        ("step/derived_ms", "step_ms"),
        ("step/server_ms", "server_step_ms"),
        ("spec/accept_length", "accept_length"),
        ("spec/accept_length_request_mean", "accept_length_request_mean"),
        ("spec/verified_rows_per_step", "verified_rows_per_step"),
        ("spec/committed_per_step", "committed_per_step"),
        ("ttft/mean_ms", "mean_ttft_ms"),
        ("ttft/median_ms", "median_ttft_ms"),
        ("throughput/output_tok_s", "output_tok_s"),
        ("throughput/peak_tok_s", "peak_tok_s"),
        ("throughput/peak_low_tok_s", "peak_low_tok_s"),
        ("throughput/peak_high_tok_s", "peak_high_tok_s"),
    ]
    measured = {key: 0.1 + place for place, (_, key) in enumerate(figures)}
    task = {"name": "gsm8k", "accuracy": 0.5, "invalid": 0.25, "stop_rate": 0.75, "truncation_rate": 0.125}
    gates = {name: {"status": name} for name in ("pass", "fail", "not_run")}
    assert metrics(RECORD | {"metrics": measured, "task": task, "gates": gates}) == {
        **{slash: measured[key] for slash, key in figures},
        "task/gsm8k_accuracy": 0.5,
        "task/gsm8k_invalid": 0.25,
        "task/gsm8k_stop_rate": 0.75,
        "task/gsm8k_truncation_rate": 0.125,
        "gate/pass": 1.0,
        "gate/fail": 0.0,
    }


def records(run: Run) -> dict[str, dict[str, Any]]:
    paths = [Path(cell["record"]) for cell in run.line["cells"]]
    return {path.parent.parent.name: json.loads(path.read_text()) for path in paths}


def stored(uri: str, study: str) -> tuple[list[StoredRun], dict[str, StoredRun]]:
    """Parents, and children by name."""
    client = MlflowClient(tracking_uri=uri)
    (experiment,) = [e for e in client.search_experiments() if e.name == study]
    runs = [*client.search_runs([experiment.experiment_id])]
    children = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    assert len({run.info.run_name for run in children}) == len(children)
    return [run for run in runs if run not in children], {str(run.info.run_name): run for run in children}


def content(uri: str, study: str) -> list[Any]:
    """All that a store says of a study, but for the ids that it gave and where it keeps its files."""
    client = MlflowClient(tracking_uri=uri)
    parents, children = stored(uri, study)
    said = []
    for run in [*parents, *children.values()]:
        tags = {key: value for key, value in run.data.tags.items() if key != "mlflow.parentRunId"}
        points = [client.get_metric_history(run.info.run_id, key) for key in sorted(run.data.metrics)]
        figures = [(point.key, point.value, point.timestamp, point.step) for (point,) in points]
        files = sorted(file.path for file in client.list_artifacts(run.info.run_id))
        times = run.info.status, run.info.start_time, run.info.end_time
        said.append((run.info.run_name, times, tags, run.data.params, figures, files))
    return sorted(said, key=str)


@pytest.fixture
def directory(quickstart: Run, tmp_path: Path) -> Path:
    """A copy of the study's output, records and store."""
    return shutil.copytree(quickstart.directory / "out", tmp_path / "out")


def test_a_parent_and_its_children_equal_the_records(quickstart: Run) -> None:
    uri = f"sqlite:///{quickstart.directory}/out/mlflow.db"
    client = MlflowClient(tracking_uri=uri)
    parents, children = stored(uri, "quickstart")
    assert [parent.info.status for parent in parents] == ["FINISHED"]
    kept = records(quickstart)
    assert children.keys() == kept.keys() == {"none", "nextn-3-4", "nextn-5-6"}
    for name, child in children.items():
        record = kept[name]
        assert child.data.tags["mlflow.parentRunId"] == parents[0].info.run_id
        assert child.data.metrics == pytest.approx(metrics(record))
        for slash, key in METRICS.items():
            assert child.data.metrics.get(slash) == pytest.approx(record["metrics"][key])
        assert child.data.metrics["task/gsm8k_accuracy"] == record["task"]["accuracy"]
        assert child.data.params == {key: str(value) for key, value in record["axes"].items()}
        assert child.data.tags["identity"] == record["identity"]
        assert child.data.tags["verdict"] == record["verdict"]
        artifacts = {artifact.path for artifact in client.list_artifacts(child.info.run_id)}
        assert {"spec.yaml", "record.json", "bench.jsonl", "task.jsonl"} <= artifacts
    assert children["nextn-3-4"].data.metrics["gate/byte_parity"] == 1.0
    assert "gate/byte_parity" not in children["none"].data.metrics, "not applicable is no number"
    assert not (quickstart.directory / "mlruns").exists()


class Broken:
    """A store that opened and then went away."""

    def __getattr__(self, name: str) -> Any:
        raise ConnectionError("the tracking server is gone")


def test_a_store_that_goes_away_costs_one_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tracker = Tracker(Broken(), "study", INVOCATION)  # type: ignore[arg-type]
    with tracker:
        assert not tracker.log(tmp_path)
    assert capsys.readouterr().err.count("tracking failed") == 1, "a dead server is not asked again"


def test_an_invalid_cell_is_a_failed_child_without_metrics(tmp_path: Path, blank_store: Callable[[Path], Path]) -> None:
    blank_store(tmp_path / "mlflow.db")
    (tmp_path / "record.json").write_text(json.dumps(RECORD))
    with open_tracker(StudySpec(study="s", output_dir=str(tmp_path)), INVOCATION) as tracker:
        assert tracker.log(tmp_path)
    (parent,), children = stored(f"sqlite:///{tmp_path}/mlflow.db", "s")
    assert (parent.info.status, children["none"].info.status) == ("FAILED", "FAILED")
    assert children["none"].data.metrics == {}
    assert children["none"].data.tags["failure"] == "launch"


def test_sync_files_what_the_writer_would_have(
    quickstart: Run,
    directory: Path,
    blank_store: Callable[[Path], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    uri = f"sqlite:///{blank_store(directory / 'other.db')}"
    assert analysis(["sync", str(directory), "--uri", uri]) == 0
    assert capsys.readouterr().out.endswith("3 filed, 0 there already\n")
    written = content(f"sqlite:///{quickstart.directory}/out/mlflow.db", "quickstart")
    assert len(written) == 4
    assert content(uri, "quickstart") == written
    assert analysis(["sync", str(directory), "--uri", uri]) == 0
    assert capsys.readouterr().out == "0 filed, 3 there already\n"
    assert content(uri, "quickstart") == written


def test_sync_adds_what_a_store_lacks_and_ends_what_was_begun(directory: Path) -> None:
    uri = f"sqlite:///{directory}/mlflow.db"
    whole = content(uri, "quickstart")
    client = MlflowClient(tracking_uri=uri)
    (parent,), children = stored(uri, "quickstart")
    client.delete_run(children["none"].info.run_id)
    half = client.create_run(
        parent.info.experiment_id,
        tags={key: children["nextn-3-4"].data.tags[key] for key in ("record_sha256", "mlflow.parentRunId")},
    )
    client.delete_run(children["nextn-3-4"].info.run_id)
    client.set_terminated(parent.info.run_id, "FAILED")
    assert analysis(["sync", str(directory)]) == 0
    assert content(uri, "quickstart") == whole
    assert client.get_run(half.info.run_id).info.lifecycle_stage == "deleted"


def test_sync_leaves_a_running_attempt_alone(
    tmp_path: Path, checkpoint: Path, blank_store: Callable[[Path], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    done = tmp_path / "out/s/none/attempt-1"
    done.mkdir(parents=True)
    (done / "record.json").write_text(json.dumps(RECORD))
    blank_store(tmp_path / "out/mlflow.db")
    process = begin(small(tmp_path, checkpoint, engine=fake_command(step_ms=200.0)), tmp_path)
    wait_for_stage(process, tmp_path / "out", "bench")
    assert analysis(["sync", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.endswith("1 filed, 0 there already\n")
    process.send_signal(signal.SIGTERM)
    finish(process, tmp_path)
    assert analysis(["sync", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.endswith("1 filed, 1 there already\n")


def test_a_store_that_fails_in_mid_study_loses_no_cell(
    tmp_path: Path, checkpoint: Path, blank_store: Callable[[Path], Path]
) -> None:
    database = tmp_path / "out/mlflow.db"
    database.parent.mkdir()
    blank_store(database)
    overrides = ("tracking=mlflow", "gate=off", "speculation.num_steps=1,2", "-m")
    process = begin(small(tmp_path, checkpoint, *overrides, engine=fake_command(step_ms=20.0)), tmp_path)
    wait_for_stage(process, tmp_path / "out", "bench")
    database.write_bytes(b"no database" * 10_000)
    run = finish(process, tmp_path)
    assert (run.code, [cell["status"] for cell in run.line["cells"]]) == (0, ["valid", "valid"])
    assert run.line["untracked"] == [cell["record"] for cell in run.line["cells"]]
    assert "python -m analysis sync" in run.err
    assert run.err.count("tracking failed") == 1
    blank_store(database)
    assert analysis(["sync", str(tmp_path / "out")]) == 0
    (parent,), children = stored(f"sqlite:///{database}", "single")
    assert parent.info.status == "FINISHED"
    assert {child.info.status for child in children.values()} == {"FINISHED"}


def refused(directory: Path, uri: str | None = None) -> str:
    with pytest.raises(ConfigError, match=r"tracking\.uri: .* cannot be opened for writing") as caught:
        open_tracker(StudySpec(study="s", output_dir=str(directory), tracking=TrackingSpec(uri=uri)), INVOCATION)
    return str(caught.value)


def test_an_unreachable_server_is_found_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert "timed out" in refused(tmp_path, f"http://127.0.0.1:{port}")
    assert "refused" in refused(tmp_path, f"http://127.0.0.1:{port}")


def test_a_store_that_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_bytes(b"no database" * 1000)
    assert "not a database" in refused(tmp_path)


def test_a_read_only_store_is_found_before_anything_starts(
    run_py: Callable[..., Run], small_disk: Callable[[int], Path], blank_store: Callable[[Path], Path]
) -> None:
    disk = small_disk(16 * 2**20)
    blank_store(disk / "mlflow.db")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    shown = run_py("tracking=mlflow", f"tracking.uri=sqlite:///{disk}/mlflow.db")
    assert shown.code == 2
    assert "tracking.uri: " in shown.line["error"]
    assert "readonly database" in shown.line["error"]
    assert not list((shown.directory / "out").rglob("record.json"))


def test_a_directory_that_takes_no_new_store_is_found_at_once(
    tmp_path: Path, small_disk: Callable[[int], Path]
) -> None:
    disk = small_disk(2**20)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    begun = time.monotonic()
    assert "Read-only file system" in refused(tmp_path, f"sqlite:///{disk}/mlflow.db")
    assert time.monotonic() - begun < 10.0


def test_a_place_for_files_that_takes_none_is_found_as_well(
    tmp_path: Path, small_disk: Callable[[int], Path], blank_store: Callable[[Path], Path]
) -> None:
    disk = small_disk(2**20)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    uri = f"sqlite:///{blank_store(tmp_path / 'mlflow.db')}"
    MlflowClient(tracking_uri=uri).create_experiment("s", (disk / "artifacts").as_uri())
    assert f"{disk} is not writable" in refused(tmp_path, uri)


def test_a_database_whose_maker_is_killed_is_not_left_half_made(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from experiments.store import open_shelf; print(flush=True)\n"
    code += "open_shelf(Path(sys.argv[1]), 's', None)"
    maker = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, env=os.environ)
    assert maker.stdout is not None
    maker.stdout.readline()
    while not list(tmp_path.glob(".mlflow.db.*")):
        assert maker.poll() is None
    maker.kill()
    maker.communicate()
    assert not (tmp_path / "mlflow.db").exists(), "whoever comes next makes a whole one"


def test_of_two_makers_one_is_first_and_its_database_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = tmp_path / "mlflow.db"

    class Slow:
        def __init__(self, uri: str) -> None:
            Path(uri.removeprefix("sqlite:///")).write_text("ours")

        def search_experiments(self, max_results: int) -> None:
            database.write_text("theirs")

    monkeypatch.setattr("mlflow.tracking.MlflowClient", Slow)
    create(database)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("mlflow.db", "theirs")]
