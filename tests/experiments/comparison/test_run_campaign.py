"""run.py mode=campaign on the fake engine: killed in the midst of a decision, and run again on what was carried off."""

from __future__ import annotations

import json
import shutil
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from experiments.claim import running
from experiments.status import collect
from tests.experiments.driver import Run, begin, fake_command, finish, small, start

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

pytestmark = pytest.mark.process


def entry(name: str, override: str) -> str:
    return f"{{name:{name},overrides:['{override}']}}"


CHANGES = (
    entry("wrong", "engine.extra_args=[--fault,other_tokens]"),
    entry("faster", 'engine.extra_args=[--step-ms,"4"]'),
    entry("idle", '+env.IDLE="1"'),
)
OPTIONS = (
    *("mode=campaign", "study=chain", "resume=true", "tracking=mlflow", "gate.parity_tokens=64"),
    *("ab.servers=together", "ab.start=at_once"),
    *("ab.prompts=1", "ab.floor_blocks=2", "ab.budget_s=12", f"campaign.changes=[{','.join(CHANGES)}]"),
)


@dataclass(frozen=True)
class Story:
    killed: Path
    """The decision that was being made."""
    seen: dict[Path, bytes]
    """Records of the time of the kill that were whole."""
    run: Run
    study: Path


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Story:
    directory = tmp_path_factory.mktemp("campaign")
    command = small(directory, checkpoint, *OPTIONS, engine=fake_command(step_ms=40.0))
    study = directory / "out/chain"
    process = begin(command, directory)
    killed = wait_for_blocks(process, study)
    process.send_signal(signal.SIGKILL)
    finish(process, directory)
    files = [path for path in study.rglob("*.json") if path.name in ("record.json", "decision.json")]
    seen = {path: path.read_bytes() for path in files if path.parent != killed}
    carry(directory / "out")
    return Story(killed, seen, start(command, directory), study)


def carry(output: Path) -> None:
    """As if the rest ran elsewhere: all that is taken along is the study, the floors and the store."""
    left = output.rename(output.with_suffix(".left"))
    output.mkdir()
    for name in ("chain", "floors", "mlflow.db"):
        shutil.move(left / name, output / name)
    shutil.rmtree(left)


def wait_for_blocks(process: subprocess.Popen[str], study: Path, timeout_s: float = 120.0) -> Path:
    """The attempt at the second decision, once it has answers."""
    deadline = time.monotonic() + timeout_s
    while True:
        for attempt in study.glob("decisions/faster/attempt-*"):
            answers = attempt / "answers.jsonl"
            if running(attempt) and answers.exists() and answers.read_text():
                return attempt
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "no block ever ended"
        time.sleep(0.02)


def test_it_goes_on_where_it_stopped(story: Story) -> None:
    assert story.run.code == 1, story.run.err  # one change was rejected
    assert len(story.seen) >= 4, "base, wrong, its decision, faster"
    for path, content in story.seen.items():
        assert path.read_bytes() == content
        assert [attempt.name for attempt in path.parents[1].glob("attempt-*")] == ["attempt-1"], "measured once"
    assert json.loads((story.killed / "decision.json").read_text())["failure"]["class"] == "unfinished"
    assert story.killed.with_name("attempt-2").is_dir()
    assert len([*(story.study.parent / "floors").iterdir()]) == 1
    assert "A/A run" not in story.run.err, "the floor was taken along"


def test_one_is_rejected_by_a_gate_one_kept_and_one_is_inconclusive(story: Story) -> None:
    lines = {line["name"]: line for line in story.run.line["decisions"]}
    assert [(name, line["verdict"]) for name, line in lines.items()] == [
        ("wrong", "reject"),
        ("faster", "keep"),
        ("idle", "inconclusive"),
    ]
    assert lines["wrong"]["rule"] == "gate:byte_parity"
    assert (lines["wrong"]["baseline"], lines["idle"]["baseline"]) == ("base", "faster")
    assert lines["faster"]["step_time"]["high"] < -0.5


def test_files_line_and_store_agree(story: Story) -> None:
    from mlflow.tracking import MlflowClient  # noqa: PLC0415 - seconds of imports

    file: dict[str, Any] = json.loads((story.study / "campaign.json").read_text())
    assert file["kept"] == ["faster"]
    (worth,) = file["leave_one_out"]
    assert story.run.line["campaign"] == {"kept": ["faster"], "skipped": [], "leave_one_out": [worth]}
    assert "faster is worth step_time" in story.run.out
    assert (worth["name"], worth["interaction"]) == ("without-faster", 0)
    lines = {line["name"]: line for line in story.run.line["decisions"]}
    client = MlflowClient(f"sqlite:///{story.study.parent / 'mlflow.db'}")
    (experiment,) = client.search_experiments(filter_string="name = 'chain'")
    runs = client.search_runs([experiment.experiment_id])
    filed = {run.data.tags["name"]: run for run in runs if run.data.tags.get("kind") == "change"}
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert len(parents) == 1, "both calls belong to one campaign"
    for line in file["changes"]:
        assert {key: lines[line["name"]][key] for key in line if key != "record"} == {
            key: value for key, value in line.items() if key != "record"
        }
        tags, metrics = filed[line["name"]].data.tags, filed[line["name"]].data.metrics
        assert (tags["verdict"], tags["reason"]) == (line["verdict"], line["reason"])
        if line["step_time"]:
            assert metrics["ab/step_time/always_valid_estimate"] == line["step_time"]["estimate"]


def test_the_store_lacks_nothing_but_the_attempt_that_was_killed(story: Story) -> None:
    from analysis.sync import sync  # noqa: PLC0415 - as above

    assert sync(story.study.parent).filed == (story.killed,)
    assert sync(story.study.parent).filed == ()


def test_status_shows_decisions_beside_cells(story: Story) -> None:
    rows = {row.cell: row for row in collect(story.study.parent)}
    assert set(rows) == {
        "base",
        *(f"{kind}{name}" for kind in ("", "decision: ") for name in ("wrong", "faster", "idle")),
    }
    faster = rows["decision: faster"]
    assert (faster.study, faster.attempt, faster.status, faster.verdict) == ("chain", 2, "valid", "keep")
