"""A driver that is killed at any of its writes: what it leaves is whole or says that it is not, and all goes on."""

from __future__ import annotations

import json
import os
import re
import signal
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from analysis.__main__ import main as analysis
from analysis.records import RecordError, load
from experiments.attempt import recorded
from experiments.claim import running
from experiments.failure import unfinished
from experiments.progress import Stages
from experiments.record import FILE, attempts, new_attempt, number, read, write_json
from experiments.sharing import Takeover, joined
from experiments.spec import StudySpec
from experiments.status import collect
from tests.experiments.driver import ROOT, begin, fake_command, finish, small
from tests.experiments.driver import attempts as made
from tests.experiments.processes import MARK, wait_gone
from tests.fakes.killed_at_a_write import watch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STUDY = StudySpec(study="s", resume=True)
OPENED: dict[str, Any] = {
    "schema": 1, "name": "none", "study": "s", "identity": "i", "status": "invalid", "failure": unfinished(),
    "role": "baseline", "baseline": None, "verdict": None, "rule": "infrastructure", "reason": "unfinished",
}  # fmt: skip
CLOSING = {"status": "valid", "failure": None, "verdict": "baseline", "rule": "none", "reason": "first", "metrics": {}}


def dies(directory: Path, index: int, action: Callable[[], object]) -> bool:
    """Whether a child that runs this reached its write number `index`."""
    child = os.fork()
    if child == 0:
        try:
            watch(str(directory), index)
            action()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def attempt_at(cell: Path) -> None:
    """All that a driver itself writes about a cell, in its order."""
    directory = new_attempt(cell)

    def work() -> dict[str, Any]:
        write_json(directory / "environment.json", {})
        write_json(directory / "gate.json", {"probe": [1, 2, 3]})
        return CLOSING

    recorded(directory / FILE, OPENED | {"attempt": number(directory)}, work, Stages(1))


@pytest.mark.whole
def test_killed_at_each_write_of_an_attempt(tmp_path: Path) -> None:
    states = []
    for index in count():
        output = tmp_path / str(index)
        cell = output / "s/none"
        cell.parent.mkdir(parents=True)
        if not dies(cell, index, lambda cell=cell: attempt_at(cell)):  # type: ignore[misc]
            break
        states.append(state(output))
        takeover = Takeover(study=STUDY, ended={})
        known = takeover.outcome(cell, "i")
        assert (known is not None) == (states[-1] == "valid")
        attempt_at(cell)
        assert takeover.outcome(cell, "i") == attempts(cell)[-1]
        assert state(output) == "valid"
        assert number(attempts(cell)[-1]) == len(attempts(cell))
    assert [*dict.fromkeys(states)] == ["nothing", "no record", "unfinished", "valid"]
    assert states.count("unfinished") >= 8
    assert states.count("valid") >= 2, "sync of the directory, and the claim's removal"


def state(output: Path) -> str:
    """What every reader makes of it, in one word; none of them fails."""
    rows = collect(output)
    if not rows:
        return "nothing"
    (row,) = rows
    (cell,) = {attempt.parent for attempt in made(output)}
    last = attempts(cell)[-1]
    assert running(last) is None
    if not (last / FILE).exists():
        assert (row.status, row.class_) == ("invalid", "unfinished")
        with pytest.raises(RecordError, match=r"no record\.json"):
            load(output)
        return "no record"
    record = read(last)
    (shown,) = load(output).to_dict("records")
    assert shown["status"] == row.status == record["status"]
    if row.status == "valid":
        assert {"environment.json", "gate.json"} <= {path.name for path in last.iterdir()}
        for file in last.glob("*.json"):
            json.loads(file.read_text())
        return "valid"
    assert (row.class_, record["failure"]["class"]) == ("unfinished", "unfinished")
    assert "metrics" not in record
    return "unfinished"


def test_killed_while_a_round_begins(tmp_path: Path) -> None:
    def start() -> None:
        with joined(tmp_path / "s", "p", STUDY, lambda takeover: 1):
            pass

    seen = set()
    for index in count():
        if not dies(tmp_path / "s", index, start):
            break
        with joined(tmp_path / "s", "p", STUDY, lambda takeover: 1) as one:
            seen.add(one.invocation.id)
    assert index >= 5
    assert len(seen) == 1


def listed(run_err: str) -> list[str]:
    return re.findall(r"^write \d+: (.*)$", run_err, re.MULTILINE)


def watched(directory: Path, index: int, command: list[str]) -> list[str]:
    python, *program = command
    return [python, str(ROOT / "tests/fakes/killed_at_a_write.py"), str(directory), str(index), *program]


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("tracking", ["none", "mlflow"])
def test_a_driver_killed_at_each_of_its_writes(
    tmp_path: Path,
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    blank_store: Callable[[Path], Path],
    tracking: str,
) -> None:
    """Below the study's directory; where runs are filed, below that of MLflow's files."""
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    output = tmp_path / "out"
    output.mkdir()
    blank_store(output / "mlflow.db")

    def command(study: str) -> list[str]:
        return small(tmp_path, checkpoint, f"study={study}", "resume=true", f"tracking={tracking}", "gate=off",
                     engine=fake_command())  # fmt: skip

    def place(study: str) -> Path:
        return output / study if tracking == "none" else output / "mlartifacts" / study

    whole = finish(begin(watched(place("whole"), -1, command("whole")), tmp_path), tmp_path)
    assert whole.code == 0, whole.err
    writes = listed(whole.err)
    ours = {index: write for index, write in enumerate(writes) if " hydra" not in write}
    assert len(ours) > 10, writes
    for index, write in ours.items():
        study = f"at-{index}"
        mark = f"{tmp_path}/{index}"
        killed = finish(begin(watched(place(study), index, command(study)), tmp_path, **{MARK: mark}), tmp_path)
        assert killed.code == -signal.SIGKILL, (write, killed.err)
        assert wait_gone(mark, 10.0) == []
        for row in collect(output):
            assert row.status == "valid" or row.class_ == "unfinished", (write, row)
        again = finish(begin(command(study), tmp_path), tmp_path)
        assert (again.code, [cell["status"] for cell in again.line["cells"]]) == (0, ["valid"]), (write, again.err)
        assert analysis(["compare", str(output), "--study", study]) == 0
    if tracking == "mlflow":
        assert analysis(["sync", str(output)]) == 0
    assert {row.status for row in collect(output)} == {"valid"}
