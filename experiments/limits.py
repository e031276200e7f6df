"""Every phase of a cell has a limit of its own, and a key that sets it.

The surprise: the limit is an alarm signal, because what hangs is a read somewhere in a client, a task or a gate, none
of which should have to carry a deadline. The alarm is no Exception until it reaches the border of its phase, so that
nothing on the way takes it for a failure of its own.
"""

from __future__ import annotations

import contextlib
import signal
import time
from typing import TYPE_CHECKING, Literal

from experiments.errors import PhaseTimeout

if TYPE_CHECKING:
    from collections.abc import Iterator

Part = Literal["collect", "fit", "profile"]
"""Phases of a calibration."""

Phase = Literal["launch", "warm-up", "bench", "task", "gates", Part]

KEYS: dict[Phase, str] = {
    "launch": "engine.ready_timeout_s",
    "warm-up": "workload.warmup_timeout_s",
    "bench": "workload.timeout_s",
    "task": "task.timeout_s",
    "gates": "gate.timeout_s",
    "collect": "calibration.timeout_s",
    "fit": "calibration.timeout_s",
    "profile": "calibration.timeout_s",
}
AGAIN_S = 5.0
"""An alarm that falls into a destructor is lost; another one follows."""


class _Expired(BaseException):
    """The alarm on its way out."""


@contextlib.contextmanager
def within(phase: Phase, seconds: float) -> Iterator[None]:
    """To be entered in the main thread. Raises PhaseTimeout once `seconds` have passed inside."""
    begun = time.monotonic()
    handler = signal.signal(signal.SIGALRM, _expire)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
    try:
        try:
            yield
        finally:
            disarm()
    except _Expired:
        raise PhaseTimeout(f"{phase} did not end within {seconds:g} s ({KEYS[phase]})") from None
    finally:
        disarm()
        signal.signal(signal.SIGALRM, handler)
        if left:  # somebody else's alarm goes on
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - begun), 1e-3), interval)


def disarm() -> None:
    """No alarm from now on; what is under way takes the time it takes."""
    signal.setitimer(signal.ITIMER_REAL, 0)


def _expire(_number: int, _frame: object) -> None:
    raise _Expired
