"""What the ranks of one model say to each other in a pass: sums of partial rows, and parts laid side by side.

One rank alone says nothing: its communicator gives back what it is given, so the network is written once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


class Communicator:
    """One rank alone."""

    rank = 0
    size = 1

    def reduce(self, part: Tensor) -> Tensor:
        """The sum over ranks of rows [R, D]; `part` may be overwritten. Every rank gets the same bits."""
        return part

    def beside(self, part: Tensor) -> Tensor:
        """Every rank's columns [n, C] as [n, size * C], in the order of ranks."""
        return part

    def best(self, choice: Tensor) -> Tensor:
        """choice [n, 2] holds each row's best value and its token, fp64 -> the best tokens of all ranks [n].

        Ties go to the lowest rank, whose tokens are the lowest.
        """
        return choice[:, 1].long()

    def zeros(self, like: Tensor) -> Tensor:
        """A residual stream that adds nothing, shaped as `like`."""
        return torch.zeros_like(like)


ALONE = Communicator()
