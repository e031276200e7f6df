"""Metadata refills as small graphs of their own: eager twice, recorded the third time, replayed from then on.

May be recorded: a refill that consists of device work on persistent buffers. One that computes anything on the host
would be frozen at the values of its recording, and verification would hide it: outputs stay right and accept length
falls to one; so it says that it is host-fed and is never recorded. A recording that fails turns all recording off for
good, loudly, and the step goes on eagerly. Recording a key again (`reset`) writes to the same buffers as before, which
is what makes it safe beside graphs that read them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    Refill = Callable[[], None]
    Recorder = Callable[[Refill], Refill | None]

log = logging.getLogger(__name__)
WARM = 2
"""Eager runs of a key before it is recorded, for whatever is compiled or tuned on first use."""


@dataclass
class Entry:
    seen: int = 0
    replay: Refill | None = None


@dataclass
class Glue:
    """The refills of one executor by key: (requests, what for). `recorder` gives a replay, or None to stay eager."""

    recorder: Recorder
    entries: dict[tuple[int, str], Entry] = field(default_factory=dict)
    disabled: bool = False
    replays: int = 0
    eager_after_warm: int = 0

    def run(self, key: tuple[int, str], refill: Refill, *, host_fed: bool = False) -> None:
        """Refill once, by whichever way the key has come to; `refill` must be the same work on every call."""
        entry = self.entries.setdefault(key, Entry())
        entry.seen += 1
        if entry.seen > WARM and entry.replay is None and not (self.disabled or host_fed):
            entry.replay = self._record(key, refill)
        if entry.replay is not None and not self.disabled:
            self.replays += 1
            entry.replay()
            return
        self.eager_after_warm += entry.seen > WARM
        refill()

    def reset(self) -> None:
        """Forget recordings, as when the buffers' owner records its own graphs anew; counts stay."""
        self.entries.clear()

    def _record(self, key: tuple[int, str], refill: Refill) -> Refill | None:
        try:
            return self.recorder(refill)
        except RuntimeError:
            self.disabled = True
            log.warning(
                "metadata glue graph %s could not be recorded; refills are eager from here on", key, exc_info=True
            )
            return None
