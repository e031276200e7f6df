"""What the halves of a run tell each other beside the data: counters, seconds, and the wish to stop.

One table in shared memory, one row per pair of halves; every cell has one writer, so nobody needs a lock, and nothing
is lost or left locked when a half is killed.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

NEVER = torch.iinfo(torch.int64).max
LEAD = 3


class Cell(IntEnum):
    """Columns; batches and tokens are counted from the start of this process."""

    PRODUCED = 0
    """Batches that the target's half has handed over."""
    CONSUMED = 1
    """Batches that the draft's half has taken."""
    TARGET_TOKENS = 2
    TARGET_WAITED = 3
    """Seconds for which a finished batch found the queue full."""
    DRAFT_TOKENS = 4
    DRAFT_WAITED = 5
    """Seconds for which the trainer found the queue empty."""
    TARGET_SINCE = 6
    """When the wait began that is not over yet, on the machine's monotonic clock; 0 while there is none."""
    DRAFT_SINCE = 7


@dataclass(frozen=True)
class Board:
    cells: Tensor
    wish: Tensor
    """1 once somebody wants the run to stop."""
    last: Tensor
    """The step after which all trainers stop."""

    @classmethod
    def of(cls, pairs: int) -> Board:
        cells = torch.zeros(pairs, len(Cell), dtype=torch.float64).share_memory_()
        wish = torch.zeros(1, dtype=torch.int64).share_memory_()
        return cls(cells, wish, torch.full_like(wish, NEVER).share_memory_())

    def add(self, pair: int, cell: Cell, amount: float) -> None:
        self.cells[pair, cell] += amount

    @contextmanager
    def waiting(self, pair: int, waited: Cell, since: Cell) -> Iterator[None]:
        started = time.monotonic()
        self.cells[pair, since] = started
        yield
        self.add(pair, waited, time.monotonic() - started)
        self.cells[pair, since] = 0

    def request_stop(self) -> None:
        self.wish.fill_(1)

    @property
    def stopping(self) -> bool:
        return bool(self.wish.item())

    @property
    def last_step(self) -> int:
        return int(self.last.item())

    def settle(self, step: int) -> None:
        """The first trainer, after `step`: turn a wish to stop into the step after which all of them do.

        Gradients are summed at every step, and no trainer launches a step before the last but one has ended, so nobody
        can be more than two steps ahead of the first.
        """
        if self.stopping and self.last_step == NEVER:
            self.last.fill_(step if len(self.cells) == 1 else step + LEAD)

    def read(self) -> Reading:
        """The table as it is now, with waits that are not over counted up to now."""
        now, cells = time.monotonic(), self.cells.clone()
        for waited, since in ((Cell.TARGET_WAITED, Cell.TARGET_SINCE), (Cell.DRAFT_WAITED, Cell.DRAFT_SINCE)):
            cells[:, waited] += torch.where(cells[:, since] > 0, now - cells[:, since], 0)
        return Reading(now, cells)


@dataclass(frozen=True)
class Reading:
    """The table at one moment; two of them say what happened between."""

    at: float
    cells: Tensor

    def since(self, earlier: Reading) -> Pace:
        pairs, change = len(self.cells), (self.cells - earlier.cells).sum(0)
        seconds = max(self.at - earlier.at, 1e-9) * pairs

        def half(tokens: Cell, waited: Cell) -> HalfPace:
            share = min(max(float(change[waited]) / seconds, 0.0), 1.0)
            worked = seconds / pairs * (1 - share)
            return HalfPace(tokens_s=float(change[tokens]) / worked if worked > 1e-3 else 0.0, waited=share)

        return Pace(
            target=half(Cell.TARGET_TOKENS, Cell.TARGET_WAITED),
            draft=half(Cell.DRAFT_TOKENS, Cell.DRAFT_WAITED),
            queue=float((self.cells[:, Cell.PRODUCED] - self.cells[:, Cell.CONSUMED]).mean()),
        )


@dataclass(frozen=True, kw_only=True)
class HalfPace:
    """Tokens per second of the time it worked, and the share of all time for which it waited for the other half."""

    tokens_s: float
    waited: float

    def __str__(self) -> str:
        return f"{self.tokens_s / 1e3:.1f}k tok/s, waits {self.waited:.0%}"


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Both halves over the time since the last look, all pairs together; `queue` is batches between them now."""

    target: HalfPace
    draft: HalfPace
    queue: float

    def __str__(self) -> str:
        return f"target {self.target}; draft {self.draft}; queue {self.queue:.1f}"
