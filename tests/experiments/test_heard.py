"""A signal that a library's clean-up has put another exception in the place of is still one that came."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from experiments.errors import Interrupted
from experiments.interrupts import heard, interruptible


def test_a_signal_that_was_masked_by_another_error_is_raised_again() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    try:
        with interruptible():
            heard()
            with contextlib.suppress(AttributeError):
                try:
                    os.kill(os.getpid(), signal.SIGHUP)
                    signal.pause()
                finally:
                    raise AttributeError("as a clean-up that was cut in two")
            with pytest.raises(Interrupted, match="SIGHUP"):
                heard()
        with interruptible():
            heard()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
