"""Starts both halves as processes and ends them together: a half that dies takes the other along, with the reason.

Every child writes to a log of its own; console lines come from the one that is given the console. A child whose parent
is gone ends itself, so nothing is left behind however the run is killed. The surprise: a child that finds the channel
closed ends with a code of its own, which tells the victim of a death from its cause.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

from ling_runtime.training.dspark.channel import PeerGoneError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.process import BaseProcess
    from pathlib import Path

PEER_GONE = 75
ORPHANED = 76
GRACE_S = 5.0
"""For a child to end on TERM, before KILL."""
CAUSE_S = 2.0
"""For the cause to show, where a victim was seen first."""
TAIL_LINES = 15

SPAWN = multiprocessing.get_context("spawn")
"""A forked child would share CUDA's state with its parent, which does not work."""


class HalfDiedError(RuntimeError):
    """One half of the run has ended early; the message says which, how, and what it said last."""


@dataclass(frozen=True)
class Half:
    """A child process with a log of its own."""

    name: str
    process: BaseProcess
    log: Path

    @classmethod
    def start(cls, name: str, logs: Path, body: Callable[..., None], *arguments: Any) -> Half:
        """Run body(*arguments) as process `name`, which logs to `logs`/`name`.log."""
        logs.mkdir(parents=True, exist_ok=True)
        log = logs / f"{name}.log"
        log.unlink(missing_ok=True)
        process = SPAWN.Process(target=_child, args=(log, body, arguments), name=name)
        process.start()
        return cls(name, process, log)

    @property
    def failed(self) -> bool:
        return self.process.exitcode not in (None, 0)

    @property
    def is_cause(self) -> bool:
        return self.failed and self.process.exitcode != PEER_GONE

    def epitaph(self) -> str:
        code = self.process.exitcode or 0
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        lines = self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:] if self.log.exists() else []
        said = "\n".join(f"  {line}" for line in lines) or "  (nothing)"
        return f"{self.name} died ({how}); the other half was stopped. Its last lines, in {self.log}:\n{said}"


@contextmanager
def together() -> Iterator[list[Half]]:
    """Halves appended to the list end with this context, in whatever way it is left."""
    halves: list[Half] = []
    try:
        yield halves
    finally:
        _end(halves)


def wait_for(halves: Sequence[Half]) -> None:
    """Until all have ended by themselves; HalfDiedError as soon as one fails."""
    while running := [half for half in halves if half.process.exitcode is None]:
        connection.wait([half.process.sentinel for half in running])
        if any(half.failed for half in halves):
            raise HalfDiedError(_cause(halves).epitaph())


def _cause(halves: Sequence[Half]) -> Half:
    """The half to blame: one that did not merely find its peer gone."""
    deadline = time.monotonic() + CAUSE_S
    while time.monotonic() < deadline and not any(half.is_cause for half in halves):
        time.sleep(0.02)
    return next((half for half in halves if half.is_cause), next(half for half in halves if half.failed))


def _end(halves: Sequence[Half]) -> None:
    for half in halves:
        half.process.terminate()
    deadline = time.monotonic() + GRACE_S
    for half in halves:
        half.process.join(max(deadline - time.monotonic(), 0))
        if half.process.exitcode is None:
            half.process.kill()
            half.process.join()


@contextmanager
def stopping_on_signals(stop: Callable[[], None]) -> Iterator[list[int]]:
    """INT and TERM call `stop` instead of ending the program, the second one ends it; gives the signals so far."""
    seen: list[int] = []

    def handle(number: int, _frame: object) -> None:
        seen.append(number)
        if len(seen) > 1:
            raise SystemExit(128 + number)
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ---------------------------------------------------------------------------------------------------------------------
# In the child


def _child(log: Path, body: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what it means
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _write_to(log)
    print(f"{multiprocessing.current_process().name}: process {os.getpid()}", flush=True)
    try:
        body(*arguments)
    except PeerGoneError:
        print("the other end of the channel is gone", flush=True)
        sys.exit(PEER_GONE)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(ORPHANED)


def _write_to(log: Path) -> None:
    """Both streams of this process into `log`; what was its standard output stays open as the console."""
    global _console
    _console = os.dup(1)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


_console: int | None = None


def say(line: str) -> None:
    """One line to this process's log and to the console of the whole run."""
    print(line, flush=True)
    if _console is not None:
        with suppress(OSError):  # a console that has gone away is no reason to stop
            os.write(_console, f"{line}\n".encode())
