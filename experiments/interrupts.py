"""TERM, HUP and INT to the driver become one exception, once.

The surprise: from the first signal on, further ones are ignored and no phase's limit counts any more, so that nobody's
impatience interrupts the clean-up. A KILL needs no handler here: the supervisors' pipes close.
"""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

from experiments.errors import Interrupted
from experiments.limits import disarm

if TYPE_CHECKING:
    from collections.abc import Iterator

STOPPING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Inside, a stopping signal raises Interrupted in the main thread. Signals that are ignored at the end stay so."""
    # A HUP that was ignored before us (nohup) stays ignored.
    open_to = [number for number in STOPPING if signal.getsignal(number) is not signal.SIG_IGN]
    before = [signal.signal(number, _interrupt) for number in open_to]
    _numbers.clear()
    try:
        yield
    finally:
        for number, handler in zip(open_to, before, strict=True):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)


@contextlib.contextmanager
def shielded() -> Iterator[None]:
    """Inside, a stopping signal waits: for what must be whole, and is short."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore() -> None:
    """From now on: everything has stopped, and only the summary and the program's own end are left."""
    for stopping in STOPPING:
        signal.signal(stopping, signal.SIG_IGN)


def heard() -> None:
    """Raises Interrupted where a signal came: a library's clean-up may have put an exception of its own in place."""
    if _numbers:
        raise Interrupted(_numbers[0])


_numbers: list[int] = []


def _interrupt(number: int, _frame: object) -> None:
    ignore()
    disarm()
    _numbers.append(number)
    raise Interrupted(number)
