"""Cores, the measurement lock and foreign load."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from filelock import FileLock

from experiments import environment
from experiments.lock import is_free, measurement_lock
from experiments.machine import Cores, LoadMeter, split_cores

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

BUSY = "import os, sys, time\nprint(flush=True)\nend = time.time() + 30\nwhile time.time() < end: pass"


@pytest.mark.parametrize(
    ("available", "threads", "cores"),
    [
        ({0, 1}, 1, Cores((0,), (1,))),
        ({0, 1}, 4, Cores((0,), (1,))),
        ({2, 5, 7, 9}, 2, Cores((2, 5), (7, 9))),
        ({3}, 1, Cores()),
    ],
)
def test_server_and_client_never_share_a_core(available: set[int], threads: int, cores: Cores) -> None:
    assert split_cores(frozenset(available), threads) == cores


def test_the_lock_waits_and_says_so_once(tmp_path: Path) -> None:
    said: list[str] = []
    file = tmp_path / "lock"
    hold = f"lock = filelock.FileLock({str(file)!r}); lock.acquire(); print(flush=True); time.sleep(0.6)"
    code = f"import filelock, time; {hold}"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert not is_free(file)
        start = time.monotonic()
        with measurement_lock(str(file), said.append):
            assert time.monotonic() - start > 0.2
    assert said == [f"another measurement holds {file}"]


def test_a_dead_holder_frees_the_lock(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    code = f"import filelock, os; lock = filelock.FileLock({str(file)!r}); lock.acquire(); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code])
    with measurement_lock(str(file), pytest.fail):
        pass
    assert is_free(file)
    FileLock(file).acquire(timeout=0)


def burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_our_own_load_is_not_foreign() -> None:
    """Own and children's; compared with a foreign burner, for others may be busy on this machine as well."""
    meter = LoadMeter()
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as child:
        burn(0.4)
        child.kill()
    ours = meter.foreign_cores()
    # The same work by a process that is not below us: started by a parent that ends at once.
    burner = f"subprocess.Popen([sys.executable, '-c', {BUSY!r}], stdout=subprocess.DEVNULL)"
    adopt = f"import subprocess, sys; print({burner}.pid, flush=True)"
    out = subprocess.run([sys.executable, "-c", adopt], stdout=subprocess.PIPE, text=True).stdout
    meter = LoadMeter()
    time.sleep(0.5)
    foreign = meter.foreign_cores()
    os.kill(int(out.split()[0]), 9)
    assert foreign > 0.4
    assert ours < foreign + 0.5


def test_the_environment_is_whole_and_its_summary_short() -> None:
    full = environment.capture()
    assert full["packages"]["torch"]
    assert full["cores"] == os.cpu_count()
    short = environment.summary(full)
    assert short["packages"]["sglang"] == full["packages"].get("sglang")
    assert str(full["cores"]) in short["hardware"] or full["gpus"]
    assert environment.source({"git": None}) == "unknown"
    assert environment.source({"git": {"commit": "abc", "changes": None}}) == "abc"
    assert environment.source({"git": {"commit": "abc", "changes": "d"}}) == "abc+d"
