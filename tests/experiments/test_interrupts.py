"""A driver that is told to stop, or killed, in mid-benchmark: no process after 10 s, and an honest record."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.experiments.driver import begin as launch
from tests.experiments.driver import driver_env, fake_command, finish, small, wait_for_stage
from tests.experiments.processes import MARK, marked, wait_gone

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.process


SLOW = ("speculation.num_steps=1,2", "workload.warmup_prompts=0", "-m")


@pytest.fixture
def begin(tmp_path: Path, checkpoint: Path) -> Callable[..., subprocess.Popen[str]]:
    """A driver whose benchmark would take minutes, returned once that is under way."""

    def start(*faults: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            small(tmp_path, checkpoint, *SLOW, engine=fake_command(*faults, step_ms=1000.0)),
            env={**driver_env(), MARK: str(tmp_path)},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline = time.monotonic() + 30.0
        attempt = tmp_path / "out/single/nextn-1-2/attempt-1"
        while "/generate" not in tail(attempt / "server.log") or not (attempt / "requests.jsonl").exists():
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return process

    return start


def tail(log: Path) -> str:
    return log.read_text() if log.exists() else ""


def read(tmp_path: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((tmp_path / "out/single/nextn-1-2/attempt-1/record.json").read_text())
    return record


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_in_mid_benchmark(
    begin: Callable[..., subprocess.Popen[str]], tmp_path: Path, number: signal.Signals
) -> None:
    process = begin()
    assert len(marked(str(tmp_path))) >= 5  # driver, two supervisors, server, client
    process.send_signal(number)
    out, err = process.communicate(timeout=10.0)
    assert marked(str(tmp_path)) == []
    record = read(tmp_path)
    assert record["status"] == "invalid"
    assert record["failure"] == {"class": "interrupted", "phase": "bench", "message": number.name, "log_tail": ""}
    assert process.returncode == 3
    line = json.loads(out.splitlines()[-1])
    assert [cell["status"] for cell in line["cells"]] == ["invalid"], "the second cell is not begun"
    assert number.name in err


def test_a_second_signal_does_not_disturb_the_first(
    begin: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = begin("ignore_term")
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=12.0)
    assert (process.returncode, read(tmp_path)["failure"]["class"]) == (3, "interrupted")
    assert marked(str(tmp_path)) == []


TERM_IN_AN_IMPORT = """
import os, runpy, signal, sys
class Hook:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy.dtypes":  # from within numpy's compiled half
            os.kill(os.getpid(), signal.SIGTERM)
sys.meta_path.insert(0, Hook())
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("more", [(), ("speculation.num_stepz=3",)], ids=["a run", "a refusal"])
def test_a_signal_in_the_middle_of_an_import_is_answered_too(
    tmp_path: Path, checkpoint: Path, more: tuple[str, ...]
) -> None:
    python, *line = small(tmp_path, checkpoint, *more)
    run = finish(launch([python, "-c", TERM_IN_AN_IMPORT, *line], tmp_path), tmp_path)
    assert run.code == 3, run.err
    assert run.line["error"] == "interrupted by SIGTERM before anything started"


@pytest.mark.parametrize(("stage", "first"), [("launch", 1), ("gates", 8)])
def test_a_signal_while_a_server_hangs_and_will_not_go(
    tmp_path: Path, checkpoint: Path, stage: str, first: int
) -> None:
    """Threads that wait for its answers, as in the gates, are left behind."""
    task = ("task=gsm8k", "task.num_questions=3", "task.num_shots=1")
    engine = fake_command("stall", "ignore_term", fault_from=first)
    process = launch(small(tmp_path, checkpoint, *task, engine=engine), tmp_path, **{MARK: str(tmp_path)})
    wait_for_stage(process, tmp_path / "out", stage)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    run = finish(process, tmp_path, 10.0)
    failure = run.record()["failure"]
    assert (run.code, failure["class"], failure["phase"]) == (3, "interrupted", stage)
    assert "interrupted by SIGTERM" in run.line["error"]
    assert marked(str(tmp_path)) == []


@pytest.mark.parametrize("fault", [(), ("ignore_term", "grandchild")])
def test_a_killed_driver_leaves_no_process_and_an_unfinished_record(
    begin: Callable[..., subprocess.Popen[str]], tmp_path: Path, fault: tuple[str, ...]
) -> None:
    process = begin(*fault)
    process.kill()
    process.communicate()
    assert wait_gone(str(tmp_path), 10.0) == []
    record = read(tmp_path)
    assert (record["status"], record["failure"]["class"]) == ("invalid", "unfinished")
