"""A driver killed at any moment of a cell on the real SGLang: nothing of the server runs on, no port stays open.

The load client is the stand-in, which saves half of the time; what it is killed by is the same.
"""

from __future__ import annotations

import json
import random
import signal
import time
from typing import TYPE_CHECKING, NamedTuple

import pytest

from experiments.errors import MEANING
from experiments.ports import is_closed
from tests.experiments.driver import attempts, begin, wait_for_stage
from tests.experiments.engines.real_sglang import command, make_model, needs_it
from tests.experiments.processes import MARK, Family, wait_gone

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(1800), needs_it]

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGKILL)
WITHIN_S = {"launch": 3.0, "warm-up": 0.3, "bench": 2.0, "gates": 8.0}
"""By stage: the signal comes up to so long after its beginning, and at launch after a line of the server's log."""

LINES = ("", "server_args=", "Init parallel begin", "Load weight begin", "Uvicorn running")
"""From its first imports over those of its children to its port."""

GONE_S = 10.0
LAUNCH_S = 1200.0
SEED = 20261129


class Turn(NamedTuple):
    stage: str
    line: str
    number: signal.Signals
    moment: float

    def __str__(self) -> str:
        where = self.stage if not self.line else f"{self.stage} ({self.line})"
        return f"{where}, {self.number.name} after {self.moment:.2f} s"


def turns(count: int) -> list[Turn]:
    """Every stage with every signal, as both cycles have no common divisor."""
    chance = random.Random(SEED)

    def turn(index: int) -> Turn:
        stage = [*WITHIN_S][index % len(WITHIN_S)]
        line = LINES[index // len(WITHIN_S) % len(LINES)] if stage == "launch" else ""
        return Turn(stage, line, SIGNALS[index % len(SIGNALS)], chance.uniform(0.0, WITHIN_S[stage]))

    return [turn(index) for index in range(count)]


def wait_for_line(driver: subprocess.Popen[str], log: Path, line: str) -> None:
    deadline = time.monotonic() + LAUNCH_S
    while not (log.exists() and line in log.read_text(errors="replace")):
        assert driver.poll() is None, "the run ended before its signal"
        assert time.monotonic() < deadline, f"{line} never came"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def driver(tmp_path: Path, model: Path) -> Iterator[subprocess.Popen[str]]:
    small = ("workload.num_prompts=4", "workload.output_len=256", "workload.warmup_prompts=2", "tracking=none")
    line = command(tmp_path, model, "engine=sglang_cpu", "study=killed", *small)
    begun = begin(line, tmp_path, **{MARK: str(tmp_path)})
    yield begun
    begun.kill()
    begun.communicate()


@pytest.mark.parametrize("turn", turns(20), ids=str)
def test_nothing_is_left_of_a_killed_run(tmp_path: Path, driver: subprocess.Popen[str], turn: Turn) -> None:
    attempt = wait_for_stage(driver, tmp_path / "out", turn.stage, LAUNCH_S)
    wait_for_line(driver, attempt / "server.log", turn.line)
    time.sleep(turn.moment)
    assert driver.poll() is None, "the run ended before its signal"
    family = Family.below(driver.pid)
    driver.send_signal(turn.number)
    out, err = driver.communicate(timeout=GONE_S)
    assert driver.returncode == (-turn.number if turn.number == signal.SIGKILL else 3), (out, err)
    assert family.left(GONE_S) == []
    assert wait_gone(str(tmp_path), GONE_S) == []
    assert [port for port in family.ports if not is_closed(port)] == []
    assert turn.stage == "launch" or family.ports, "a server that was up listened somewhere"
    record = json.loads((attempt / "record.json").read_text())
    assert record["status"] == "invalid"
    assert record["failure"]["class"] in MEANING
    assert [*attempts(tmp_path / "out")] == [attempt]
