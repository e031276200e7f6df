"""The parent of one server or client: it outlives a killed driver just long enough to take its child down.

Run by path, with the standard library alone. Its stdin is a pipe: one line of JSON (the job), then silence; end of
file means "stop now", however the driver died. It answers with two lines of JSON: the child's pid when it runs, its
return code when nothing is left. The surprise: it is a child subreaper, so that grandchildren which left the process
group are still adopted, killed and reaped here. Where there are secrets, the child's files are written here, not there.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.05
MASK = b"***"
CUT = 3
"""Characters at a log's very end that are no trace of a secret, however it begins."""


def prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


class Copy(threading.Thread):
    """A pipe to a file, line by line and without secrets: what goes in raw is never on a disk, whoever is killed.

    The last line may have been cut off, and so may a secret in it.
    """

    def __init__(self, path: Path, secrets: list[str]) -> None:
        super().__init__(daemon=True)
        self._path, self._secrets = path, [secret.encode(errors="surrogateescape") for secret in secrets]
        self._pattern = re.compile(b"|".join(map(re.escape, self._secrets)))
        begin, self.end = os.pipe()
        self._lines = os.fdopen(begin, "rb")

    def run(self) -> None:
        with self._path.open("ab", buffering=0) as out:
            for line in self._lines:
                whole = line if line.endswith(b"\n") else self._cut(line)
                with contextlib.suppress(OSError):  # the disk is full; the child shall not wait for it
                    out.write(self._pattern.sub(MASK, whole))

    def _cut(self, line: bytes) -> bytes:
        begun = (secret[:size] for secret in self._secrets for size in range(len(secret) - 1, CUT, -1))
        return next((line.removesuffix(part) + MASK for part in begun if line.endswith(part)), line)


def start(job: dict[str, Any]) -> tuple[subprocess.Popen[bytes], list[Copy]]:
    """The child in a session of its own, on its cores, its output in the log; it dies with this process."""
    if not job["secrets"]:
        with Path(job["log"]).open("ab") as log:
            return launch(job, job["argv"], log.fileno()), []
    copies = {path: Copy(Path(path), job["secrets"]) for path in (job["log"], *job["outputs"])}
    argv = [f"/dev/fd/{copies[part].end}" if part in job["outputs"] else part for part in job["argv"]]
    child = launch(job, argv, copies[job["log"]].end, [copies[path].end for path in job["outputs"]])
    for copy in copies.values():
        os.close(copy.end)
        copy.start()
    return child, [*copies.values()]


def launch(job: dict[str, Any], argv: list[str], log: int, more: list[int] | None = None) -> subprocess.Popen[bytes]:
    """`more`: descriptors that it inherits."""

    def before_exec() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if job["cores"]:
            os.sched_setaffinity(0, job["cores"])

    return subprocess.Popen(
        argv,
        env=job["env"],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        pass_fds=more or (),
        start_new_session=True,
        preexec_fn=before_exec,  # noqa: PLW1509 - this process has one thread yet
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
    child, copies = start(job)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a driver that is gone reads nothing; end without a word
    print(json.dumps({"pid": child.pid}), flush=True)
    wait(child, wakeup)
    end(child, job["grace_s"])
    for copy in copies:
        copy.join()
    print(json.dumps({"returncode": child.returncode}), flush=True)


if __name__ == "__main__":
    main()
