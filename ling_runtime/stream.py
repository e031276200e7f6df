"""The event loop's end of one request: updates that wait to be taken.

The surprise: `take` hands over everything that has come since the last call. A client that reads slowly gets fewer,
larger chunks instead of a queue that grows.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ling_runtime.request import Update


class Stream:
    """Used from the event loop's thread only."""

    def __init__(self) -> None:
        self._updates: list[Update] = []
        self._waiter: asyncio.Future[None] | None = None
        self.finished = False
        """The last update has arrived, whether taken or not."""

    def push(self, update: Update) -> None:
        self._updates.append(update)
        self.finished = update.finish is not None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> list[Update]:
        """Wait for something new; to be called again until an update with a finish has come."""
        if not self._updates:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        taken, self._updates = self._updates, []
        return taken
