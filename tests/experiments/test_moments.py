"""A signal to the driver at any moment: nothing runs on, no record is half, earlier ones stay, the study resumes."""

from __future__ import annotations

import json
import random
import signal
import time
from typing import TYPE_CHECKING

import pytest

from experiments.claim import running
from experiments.errors import MEANING
from experiments.record import SCHEMA
from tests.experiments.driver import Run, attempts, begin, fake_command, finish, small, start
from tests.experiments.processes import MARK, wait_gone

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.process

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL)
SEED = 20261129
GONE_S = 10.0


def records(output: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in output.glob("*/*/attempt-*/record.json")}


def check_files(output: Path, number: signal.Signals) -> None:
    """Whole records with a status, no claim, and a file aside only where even the clean-up was killed."""
    for text in records(output).values():
        record = json.loads(text)
        assert record["schema"] == SCHEMA
        assert record["status"] == "valid" or record["failure"]["class"] in MEANING
    for attempt in attempts(output):
        assert running(attempt) is None
        if number != signal.SIGKILL:
            assert not list(attempt.glob(".record.json.*"))


def check_end(run: Run, number: signal.Signals) -> None:
    """3 and a line, or done before the signal, or ended by it before anything could be started."""
    if run.code in (0, 3):
        cells = run.line["cells"]
        assert run.code == 0 or "interrupted by" in run.line["error"]
        assert [cell["status"] for cell in cells[:-1]] == ["valid"] * len(cells[:-1])
    else:
        assert run.code == -number, run.err
        assert number == signal.SIGKILL or "[1/2]" not in run.err


@pytest.mark.parametrize("count", [4, pytest.param(20, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_a_signal_at_any_moment(
    tmp_path: Path, checkpoint: Path, blank_store: Callable[[Path], Path], count: int
) -> None:
    output = tmp_path / "out"
    output.mkdir()
    blank_store(output / "mlflow.db")
    task = ("task=gsm8k", "task.num_questions=3", "task.num_shots=1")
    sweep = (*task, "tracking=mlflow", "speculation.num_steps=1,2", "-m")
    command = small(tmp_path, checkpoint, *sweep, engine=fake_command(step_ms=2.0))
    begun = time.monotonic()
    assert start(command, tmp_path).code == 0
    whole = time.monotonic() - begun
    chance = random.Random(SEED + count)
    for turn in range(count):
        number, moment = SIGNALS[turn % 4], chance.uniform(0.0, whole)
        before = records(output)
        mark = f"{tmp_path}/{turn}"
        process = begin(command, tmp_path, **{MARK: mark})
        time.sleep(moment)
        process.send_signal(number)
        run = finish(process, tmp_path, GONE_S)
        assert wait_gone(mark, GONE_S) == [], (number, moment)
        check_files(output, number)
        check_end(run, number)
        after = records(output)
        assert {path: after[path] for path in before} == before
    assert start([*command[:-1], "resume=true", "-m"], tmp_path).code == 0
