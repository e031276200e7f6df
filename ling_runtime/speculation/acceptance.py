"""Accepting a chain of deterministic drafts.

The target's own choice is made at every row first: argmax, or a sample whose noise belongs to (seed, position). A
draft is accepted iff it is that choice. For a draft without randomness this is exact rejection sampling: a draft d is
accepted with probability p(d), and otherwise the emitted token is distributed as p without d, renormalised. The
surprise: since the noise knows nothing of windows, a seeded request emits the same tokens with and without
speculation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def correct_drafts(drafts: Tensor, choices: Tensor) -> Tensor:
    """Leading drafts [B, S] that equal the target's choices [B, >= S] -> [B], 0..S."""
    agree = drafts == choices[:, : drafts.shape[1]]
    return agree.long().cumprod(dim=1).sum(dim=1)


def last_accepted(rows: Tensor, accepted: Tensor) -> Tensor:
    """rows [B, W, ...] at index accepted - 1, accepted [B] >= 1 -> [B, ...]."""
    return rows[torch.arange(rows.shape[0], device=rows.device), accepted - 1]
