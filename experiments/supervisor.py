"""The parent of one server or client: it outlives a killed driver just long enough to take its child down.

Run by path, with the standard library alone. Its stdin is a pipe: one line of JSON (the job), then silence; end of
file means "stop now", however the driver died. It answers with two lines of JSON: the child's pid when it runs, its
return code when nothing is left. The surprise: it is a child subreaper, so that grandchildren which left the process
group are still adopted, killed and reaped here.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.05


def prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def start(job: dict[str, Any]) -> subprocess.Popen[bytes]:
    """The child in a session of its own, on its cores, its output in the log; it dies with this process."""

    def before_exec() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if job["cores"]:
            os.sched_setaffinity(0, job["cores"])

    with Path(job["log"]).open("ab") as log:
        return subprocess.Popen(
            job["argv"],
            env=job["env"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=before_exec,  # noqa: PLW1509 - this process has one thread
        )


def wait(child: subprocess.Popen[bytes], wakeup: int) -> None:
    """Return when the child has ended, the driver is gone, or a signal came."""
    poller = select.poll()
    poller.register(sys.stdin.fileno(), select.POLLIN | select.POLLHUP)
    poller.register(wakeup, select.POLLIN)
    while child.poll() is None and not poller.poll(POLL_S * 1000):
        pass


def end(child: subprocess.Popen[bytes], grace_s: float) -> None:
    """TERM to the group, grace, then KILL to every descendant, and reap them all."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while child.poll() is None and time.monotonic() < deadline:
            time.sleep(POLL_S)
    while survivors := descendants(os.getpid()):
        for pid in survivors:
            with contextlib.suppress(ProcessLookupError):  # it ended between look and kill
                os.kill(pid, signal.SIGKILL)
        reap(child)


def descendants(root: int) -> list[int]:
    """Everything below `root`, zombies included. What loses its parent comes to us, so repeated looks find all."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended between list and read
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, frontier = [], [root]
    while frontier:
        below = children.get(frontier.pop(), [])
        found += below
        frontier += below
    return found


def reap(child: subprocess.Popen[bytes]) -> None:
    """Collect what has ended; the child through its Popen, which keeps the return code."""
    child.wait()
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    time.sleep(POLL_S)


def main() -> None:
    order = sys.stdin.readline()
    if not order:
        return
    job = json.loads(order)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    wakeup, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end)
    for stop in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(stop, lambda *_: None)
    child = start(job)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a driver that is gone reads nothing; end without a word
    print(json.dumps({"pid": child.pid}), flush=True)
    wait(child, wakeup)
    end(child, job["grace_s"])
    print(json.dumps({"returncode": child.returncode}), flush=True)


if __name__ == "__main__":
    main()
