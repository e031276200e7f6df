"""Which sequences each rank sees at each step: the batch of one big rank, dealt out.

A function of the step alone. N ranks of B rows see what one rank of N * B rows would see, and a resumed run goes on
where the stream was without having stored where that is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ling_runtime.training.dspark.trajectories import Rows, Trajectories


@dataclass(frozen=True, kw_only=True)
class Stream:
    """`rows` of `length` tokens a rank and step; every `long_every`-th step has fewer and longer rows (0: none)."""

    trajectories: Trajectories
    seed: int
    ranks: int
    rows: int
    length: int
    long_every: int = 0
    long_length: int = 8192

    @property
    def tokens(self) -> int:
        """Of the largest batch of one rank."""
        return max(self.rows * self.length, self.long_rows * self.long_length if self.long_every else 0)

    @property
    def longest(self) -> int:
        return max(self.length, self.long_length) if self.long_every else self.length

    @property
    def long_rows(self) -> int:
        return max(self.rows * self.length // self.long_length, 1)

    def part(self, step: int, rank: int) -> Rows:
        """Rank `rank`'s sequences of step `step`."""
        long = self.long_every and step % self.long_every == self.long_every - 1
        rows, length = (self.long_rows, self.long_length) if long else (self.rows, self.length)
        everyone = self.trajectories.batch(step, rows=rows * self.ranks, length=length, seed=self.seed)
        return everyone.take(np.arange(rank * rows, (rank + 1) * rows))
