"""What all tests share: no limit per generated example, for cores are shared, and children that hear every signal."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Iterator

settings.register_profile("shared", deadline=None)
settings.load_profile("shared")


@pytest.fixture(scope="session", autouse=True)
def _children_hear_signals() -> Iterator[None]:
    """Under nohup, and behind a script's `&`, they would inherit that some are ignored.

    What is caught here instead is back to its default in a child.
    """
    deaf = [one for one in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM) if signal.getsignal(one) is signal.SIG_IGN]
    for number in deaf:
        signal.signal(number, lambda *_: None)
    yield
    for number in deaf:
        signal.signal(number, signal.SIG_IGN)
