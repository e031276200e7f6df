"""Supervised children: output, cores, return codes, and that nothing outlives its supervisor's pipe."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from experiments.command import Command
from experiments.process import Supervised
from tests.experiments.processes import MARK, marked, wait_gone

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("up", flush=True)
time.sleep(600)
"""
DRIVER = """
import sys, time
from pathlib import Path
from experiments.command import Command
from experiments.process import Supervised
program = Command((sys.executable, "-c", Path(sys.argv[1]).read_text()))
child = Supervised.start(program, log=Path(sys.argv[2]), grace_s=0.5)
time.sleep(600)
"""


def python(code: str, mark: str = "", **env: str) -> Command:
    return Command((sys.executable, "-c", textwrap.dedent(code)), {MARK: mark, **env})


def wait_for(text: str, log: Path) -> None:
    deadline = time.monotonic() + 10.0
    while text not in (log.read_text() if log.exists() else ""):
        assert time.monotonic() < deadline, f"{text!r} never came"
        time.sleep(0.02)


def test_output_environment_and_cores_reach_the_child(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    code = (
        "import os, sys; print(os.environ['A'], os.sched_getaffinity(0), flush=True); print('error', file=sys.stderr)"
    )
    with Supervised.start(python(code, A="x y"), log=tmp_path / "log", cores=[core]) as child:
        assert child.wait(10.0) == 0
    assert (tmp_path / "log").read_text() == f"x y {{{core}}}\nerror\n"


def test_return_codes_are_the_child_s_own(tmp_path: Path) -> None:
    with Supervised.start(python("raise SystemExit(7)"), log=tmp_path / "log") as child:
        assert child.wait(10.0) == 7
        assert not child.alive()
        assert child.stop() == 7


def test_a_program_that_does_not_exist_fails_with_the_reason_in_the_log(tmp_path: Path) -> None:
    with Supervised.start(Command(("/no/such/program",)), log=tmp_path / "log") as child:
        assert child.wait(10.0) != 0
        assert "/no/such/program" in child.tail()


def test_stop_gives_term_a_chance(tmp_path: Path) -> None:
    code = """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
        print("up", flush=True)
        time.sleep(600)
    """
    child = Supervised.start(python(code), log=tmp_path / "log")
    wait_for("up", tmp_path / "log")
    assert child.stop() == 3


def test_stop_kills_what_ignores_term_and_what_left_the_group(tmp_path: Path) -> None:
    mark = str(tmp_path)
    child = Supervised.start(python(STUBBORN, mark), log=tmp_path / "log", grace_s=0.3)
    wait_for("up", tmp_path / "log")
    assert len(marked(mark)) == 2
    assert child.stop() == -signal.SIGKILL
    assert marked(mark) == []


def test_a_child_that_ends_by_itself_leaves_no_grandchild(tmp_path: Path) -> None:
    mark = str(tmp_path)
    code = "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)"
    with Supervised.start(python(code, mark), log=tmp_path / "log") as child:
        assert child.wait(10.0) == 0
    assert marked(mark) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_no_orphan_whatever_ends_the_driver(tmp_path: Path, number: signal.Signals) -> None:
    """Also without any handler in the driver: the pipe alone must do it."""
    mark, log = str(tmp_path), tmp_path / "log"
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path / "stubborn.py"), str(log)],
        env={**os.environ, MARK: mark, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    )
    wait_for("up", log)
    assert len(marked(mark)) == 4  # driver, supervisor, child, grandchild
    driver.send_signal(number)
    driver.wait(10.0)
    assert wait_gone(mark, 10.0) == []


def test_a_killed_supervisor_takes_its_child_along(tmp_path: Path) -> None:
    mark = str(tmp_path)
    child = Supervised.start(
        python("print('up', flush=True); import time; time.sleep(600)", mark), log=tmp_path / "log"
    )
    wait_for("up", tmp_path / "log")
    os.kill(child.supervisor_pid, signal.SIGKILL)
    assert wait_gone(mark, 5.0) == []
    deadline = time.monotonic() + 5.0
    while child.alive() and time.monotonic() < deadline:  # what is ending has no environment, and no code yet
        time.sleep(0.02)
    assert not child.alive()
