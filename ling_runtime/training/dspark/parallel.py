"""Data parallelism of the draft's half: every rank has its own sequences, and together they make the step of one.

Losses divide by counts summed over ranks and gradients are added, so N ranks of B sequences give the update of one rank
of N * B.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor


@dataclass(frozen=True)
class Ranks:
    """This process among those that train the draft; `group` None: all of them."""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None

    @classmethod
    def of(cls, group: dist.ProcessGroup | None = None) -> Ranks:
        """The ranks of an initialised process group, or one rank alone."""
        if not dist.is_initialized():
            return cls()
        return cls(dist.get_rank(group), dist.get_world_size(group), group)

    def summed(self, value: Tensor) -> Tensor:
        """`value`, overwritten by its sum over ranks."""
        if self.size > 1:
            dist.all_reduce(value, group=self.group)
        return value

    def add_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace each gradient by its sum over ranks, in one message."""
        if self.size == 1:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        total_of_all = self.summed(torch.cat([g.flatten() for g in gradients]))
        for gradient, total in zip(gradients, total_of_all.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(total.view_as(gradient))
