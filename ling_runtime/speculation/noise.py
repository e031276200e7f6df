"""Randomness as a function of its key: (seed, position, stream), and nothing else.

Numbers do not come from a generator that moves on, so a request's tokens depend neither on the batch it runs in nor on
what ran before. The surprise is which position drafting and acceptance use: that of the window's anchor, not of the
token. A rejected position is drafted again in the next step, and numbers that have already decided something must not
decide twice; anchors only move forward, so (anchor, row) never comes back.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor


class Stream(IntEnum):
    """What a number is for. Different streams of one (seed, position) are independent."""

    TARGET = 0
    """The target's own choice: position of the token chosen, one number per token id."""
    DRAFT = 1
    """A proposer's choices: position of the anchor, `drafts * vocabulary` numbers, row by row."""
    ACCEPT = 2
    """Acceptance: position of the anchor, one number per draft."""
    BONUS = 3
    """The token after the accepted drafts: position of the anchor, one number."""


def uniform(seeds: Tensor, positions: Tensor, count: int, stream: Stream = Stream.TARGET) -> Tensor:
    """fp64 numbers in (0, 1), [R, count] for seeds [R] and positions [R], both int64.

    Two rounds of the splitmix64 finaliser over (seed, position, index); a longer row starts with the shorter one.
    """
    keys = seeds ^ _signed(stream * _STREAM_STEP)
    index = torch.arange(count, dtype=torch.int64, device=seeds.device)
    state = _mix(_mix(keys + positions * _GOLDEN).unsqueeze(1) + index * _GOLDEN)
    return ((state >> 11 & (1 << 53) - 1).double() + 0.5) * 2.0**-53


def seed_tensor(seeds: Iterable[int], device: torch.device) -> Tensor:
    """Seeds of any size as int64, those of more than 64 bits by their last 64."""
    return torch.tensor([_signed(seed) for seed in seeds], dtype=torch.int64, device=device)


def _mix(x: Tensor) -> Tensor:
    """splitmix64's finaliser on signed 64-bit integers, which wrap as unsigned ones do; shifts are made logical."""
    x = (x ^ (x >> 30 & (1 << 34) - 1)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> 27 & (1 << 37) - 1)) * _signed(0x94D049BB133111EB)
    return x ^ (x >> 31 & (1 << 33) - 1)


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_STREAM_STEP = 0xD1342543DE82EF95
