"""experiment=dspark_calibrate with programs that take no time: artifacts whole or not at all, failures as of cells."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mlflow.tracking import MlflowClient

from experiments.calibration import flags, progress
from experiments.checks import checked
from experiments.errors import ConfigError
from experiments.spec import CalibrationSpec, CellSpec, SpeculationSpec
from tests.experiments.driver import ROOT, Run, begin, finish, small, start, wait_for_stage
from tests.experiments.processes import MARK, marked
from tests.fakes.checkpoint import write_draft

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.process

FILES = {
    *("spec.yaml", "command.txt", "environment.json", "record.json"),
    *("collect.log", "fit.log", "profile.log"),
    *(MADE := ("samples.pt", "sts.json", "cost_table.json", "reliability.svg")),
}
LEFT_OF_A_FAILURE = FILES - {*MADE}


def program(fault: str = "") -> str:
    return f"calibration.command=[{sys.executable},{ROOT / 'tests/fakes/calibration.py'},--fault,{fault or 'none:'}]"


def overrides(draft: Path, *more: str, fault: str = "") -> tuple[str, ...]:
    given = ("experiment=dspark_calibrate", f"model.drafts.8={draft}", program(fault), "calibration.num_prompts=3")
    return (*given, *more)


@pytest.fixture(scope="module")
def calibrated(
    tmp_path_factory: pytest.TempPathFactory, checkpoint: Path, draft: Path, blank_store: Callable[[Path], Path]
) -> Run:
    """Two block sizes, tracked."""
    directory = tmp_path_factory.mktemp("calibrated")
    (directory / "out").mkdir()
    blank_store(directory / "out/mlflow.db")
    sizes = overrides(draft, "speculation.block_size=4,8", "kernels.moe_align=pair_axis", "tracking=mlflow", "-m")
    return start(small(directory, checkpoint, *sizes), directory)


def test_it_ends_with_artifacts_and_the_line_of_any_run(calibrated: Run) -> None:
    assert calibrated.code == 0, calibrated.err
    names = [cell["name"] for cell in calibrated.line["cells"]]
    assert (names, calibrated.line["decisions"]) == (["dspark-4", "dspark-8"], [])
    cell = calibrated.line["cells"][1]
    assert (cell["status"], cell["verdict"], cell["mean_tpot_ms"], cell["gates"]) == ("valid", None, None, {})
    attempt = Path(cell["record"]).parent
    assert {path.name for path in attempt.iterdir()} == FILES
    assert (attempt / "command.txt").read_text().count(" --kernel moe_align=pair_axis") == 3
    assert cell["artifacts"] == {
        "sts_path": str(attempt / "sts.json"),
        "cost_table_path": str(attempt / "cost_table.json"),
    }
    record = calibrated.record(1)
    assert record["role"] == "calibration"
    assert record["calibration"]["sts"] == json.loads((attempt / "sts.json").read_text())
    assert record["stages"].keys() >= {"wait for the machine", "collect", "fit", "profile"}
    assert record["calibration"]["sts"]["num_samples"] == 3, "as many prompts as were asked for"


def test_the_table_shows_what_was_found_and_how_it_is_used(calibrated: Run) -> None:
    lines = [line.split() for line in calibrated.out.splitlines()]
    assert ["8", "1.25", "0.0800", "0.0400", "0.0400", "0.0800"] in [
        [part for part in line if part != "│"] for line in lines
    ]
    assert ["8", "12.00", "44.00", "76.00", "1.000"] in [[part for part in line if part != "│"] for line in lines]
    assert calibrated.line["cells"][1]["use"] in calibrated.out


def test_the_line_it_prints_is_a_configuration_that_runs(calibrated: Run, run_py: Callable[..., Run]) -> None:
    used = calibrated.line["cells"][1]["use"].split()
    assert used[:2] == ["python", "run.py"]
    shown = run_py(*used[2:], "dry_run=true")
    assert shown.code == 0, shown.err
    assert "--speculative-dspark-verify-mode compact --speculative-dspark-scheduler causal" in shown.out
    assert "sts.json" in shown.out
    assert "--kernel moe_align=pair_axis" in shown.out


def test_mlflow_holds_figures_and_artifacts(calibrated: Run) -> None:
    client = MlflowClient(tracking_uri=f"sqlite:///{calibrated.directory}/out/mlflow.db")
    experiment = client.get_experiment_by_name("dspark_calibrate")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    run = runs["dspark-8"]
    points = {point.step: point.value for point in client.get_metric_history(run.info.run_id, "calibration/ece_after")}
    assert points == pytest.approx({k: 0.005 * k for k in range(1, 9)})
    artifacts = {artifact.path for artifact in client.list_artifacts(run.info.run_id)}
    assert {*MADE, "record.json"} <= artifacts


# fault: (class, phase, message)
BAD = {
    "collect:refuse": ("program", "collect", "collect ended with code 2"),
    "fit:die": ("program", "fit", "fit ended with code -9"),
    "profile:no_memory": ("out_of_memory", "profile", "profile ran out of memory (code 1)"),
    "profile:stall": ("timeout", "profile", "profile did not end within 1 s (calibration.timeout_s)"),
}


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path, draft: Path) -> Run:
    directory = tmp_path_factory.mktemp("bad")
    cells = [[program(fault), f"engine.random_seed={index}"] for index, fault in enumerate(BAD)]
    given = [one for one in overrides(draft, "calibration.timeout_s=1") if not one.startswith("calibration.command")]
    return start(small(directory, checkpoint, *given, f"cells={cells}".replace("'", '"')), directory)


@pytest.mark.parametrize("fault", BAD)
def test_a_program_that_fails_leaves_a_record_and_no_artifact(bad: Run, fault: str) -> None:
    cell = [*BAD].index(fault)
    record = bad.record(cell)
    assert (bad.code, record["status"], record["role"]) == (3, "invalid", "calibration")
    class_, phase, message = BAD[fault]
    assert (record["failure"]["class"], record["failure"]["phase"]) == (class_, phase)
    assert message in record["failure"]["message"]
    assert {path.name for path in Path(bad.line["cells"][cell]["record"]).parent.iterdir()} <= LEFT_OF_A_FAILURE
    assert "artifacts" not in bad.line["cells"][cell]
    if fault == "collect:refuse":
        assert "refuses on purpose" in bad.err


@pytest.mark.slow
def test_resume_calibrates_what_is_missing_and_no_more(
    tmp_path: Path, checkpoint: Path, draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    sizes = ("speculation.block_size=4,8", "resume=true", "-m")
    first = start(small(tmp_path, checkpoint, *overrides(draft, *sizes)), tmp_path)
    Path(first.line["cells"][0]["record"]).unlink()
    second = start(small(tmp_path, checkpoint, *overrides(draft, *sizes)), tmp_path)
    assert [second.record(cell)["attempt"] for cell in (0, 1)] == [2, 1], second.err


def test_a_signal_leaves_nothing_half(
    tmp_path: Path, checkpoint: Path, draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MARK, str(tmp_path))
    process = begin(small(tmp_path, checkpoint, *overrides(draft, fault="fit:stall")), tmp_path)
    attempt = wait_for_stage(process, tmp_path / "out", "fit")
    process.send_signal(signal.SIGTERM)
    run = finish(process, tmp_path)
    assert (run.code, run.record()["failure"]["class"]) == (3, "interrupted")
    assert {path.name for path in attempt.iterdir()} <= LEFT_OF_A_FAILURE
    assert marked(str(tmp_path)) == []


def test_temperatures_that_do_not_help_are_remarked_on() -> None:
    assert [*flags({"ece_before": [0.02, 0.04], "ece_after": [0.02, 0.03]})] == []
    (remark,) = flags({"ece_before": [0.02, 0.04], "ece_after": [0.03, 0.04]})
    assert "(0.0300 to 0.0350)" in remark


def test_progress_is_what_the_last_line_of_it_says(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("a warning\ncollect 1/64\ncollect 12/64\ncollect 13")
    assert (progress("collect", log), progress("profile", log)) == (12, 0)


@pytest.mark.parametrize(
    ("algorithm", "wanted", "message"),
    [
        ("nextn", {}, "calibration: calibrates speculation=dspark, not nextn"),
        ("dspark", {"requests": (1, 16)}, r"calibration\.requests: \[1, 16\] are no batches .* allowed: 1 to .*=8"),
        ("dspark", {"requests": ()}, r"calibration\.requests: \[\] are no batches"),
        ("dspark", {"temperature": -1.0}, r"calibration\.temperature: -1 is no temperature; allowed: 0 and more"),
        ("dspark", {"num_prompts": 0}, r"calibration\.num_prompts: 0 is too small"),
        ("dspark", {"timeout_s": 0.0}, r"calibration\.timeout_s: 0 is no limit"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(
    make_cell: Callable[..., CellSpec], draft: Path, algorithm: str, wanted: dict[str, Any], message: str
) -> None:
    depth: dict[str, Any] = {"num_steps": 3} if algorithm == "nextn" else {"block_size": 8, "draft_path": str(draft)}
    speculation: Any = {"algorithm": algorithm, **depth}
    calibration: Any = {"name": "dspark", **wanted}
    cell = make_cell(speculation=SpeculationSpec(**speculation), calibration=CalibrationSpec(**calibration))
    with pytest.raises(ConfigError, match=message):
        checked(cell)


def test_a_draft_without_its_confidence_head_has_nothing_to_calibrate(
    make_cell: Callable[..., CellSpec], tmp_path: Path
) -> None:
    path = write_draft(tmp_path / "draft", enable_confidence_head=False)
    speculation = SpeculationSpec(algorithm="dspark", block_size=8, draft_path=str(path))
    with pytest.raises(ConfigError, match=r"calibration: .* has no confidence head"):
        checked(make_cell(speculation=speculation, calibration=CalibrationSpec(name="dspark")))


def test_a_dry_run_shows_the_three_programs(run_py: Callable[..., Run], draft: Path) -> None:
    shown = run_py("experiment=dspark_calibrate", f"model.drafts.8={draft}", "dry_run=true")
    lines = [line for line in shown.out.splitlines() if line.startswith("env ")]
    assert [line.partition("ling_runtime.calibration ")[2].split()[0] for line in lines] == [
        "collect",
        "fit",
        "profile",
    ]
