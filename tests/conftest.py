"""What all tests share: how examples are generated, and children that hear every signal."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Iterator

# The same examples on every run, or a change would be refused for what its tests happened to draw; `make fuzz` draws
# new ones. No limit per example, for cores are shared.
settings.register_profile("fixed", deadline=None, derandomize=True)
settings.register_profile("fuzz", deadline=None, max_examples=2000)
settings.load_profile("fixed")


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
