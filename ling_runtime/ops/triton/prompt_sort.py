"""(row, expert) pairs of a prompt in the order of their experts, on the device: nothing is read back to size a launch.

Each expert's pairs get whole tiles of rows, so launches are sized for the worst case and a tile says whether it has an
expert. The surprise: the order of pairs inside an expert is that in which they were counted, and means nothing, for a
pair's result depends on no other row of its tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

PAIRS = 1024
"""Pairs that a program counts or places."""
TILES = 16
"""Tiles that a program names the experts of."""


@dataclass(frozen=True)
class Sorted:
    """`tiles` tiles of `height` rows, those that are needed first."""

    pairs: Tensor
    """[tiles * height] the pair of each tile row; rows past an expert's count hold anything."""
    experts: Tensor
    """[tiles] the expert of each tile; -1: none."""
    first: Tensor
    """[E + 1] the first tile of each expert; the last entry is the shared expert's, where there is one."""
    counts: Tensor
    """[E + 1] the pairs of each expert."""
    height: int

    @property
    def tiles(self) -> int:
        return len(self.experts)


def sort_pairs(ids: Tensor, experts: int, *, height: int, shared: bool) -> Sorted:
    """ids [R, k] -> pairs r * k + slot by expert; with `shared`, expert number `experts` gets all R rows at the end."""
    assert ids.is_contiguous(), "pairs are numbered as they lie"
    rows, pairs, device = len(ids), ids.numel(), ids.device
    most = triton.cdiv(pairs, height) + min(experts, pairs) + shared * triton.cdiv(rows, height)
    counts = torch.zeros(experts + 1, dtype=torch.int32, device=device)
    ranks = torch.empty(pairs, dtype=torch.int32, device=device)
    first = torch.empty_like(counts)
    of_tiles = torch.empty(most, dtype=torch.int32, device=device)
    order = torch.empty(most * height, dtype=torch.int32, device=device)
    _count[(triton.cdiv(pairs, PAIRS),)](ids, counts, ranks, pairs, rows if shared else 0, experts, PAIRS, num_warps=4)
    _plan[(triton.cdiv(most, TILES),)](
        counts, first, of_tiles, most, experts, triton.next_power_of_2(experts + 1), height, TILES, num_warps=8
    )
    _order[(triton.cdiv(pairs, PAIRS),)](ids, ranks, first, order, pairs, height, PAIRS, num_warps=4)
    return Sorted(order, of_tiles, first, counts, height)


@triton.jit(do_not_specialize=["pairs", "shared"])
def _count(ids, counts, ranks, pairs, shared, E: tl.constexpr, BLOCK: tl.constexpr):
    """The number of pairs of each expert, and of each pair how many came before it."""
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known = pair < pairs
    expert = tl.load(ids + pair, mask=known, other=0)
    tl.store(ranks + pair, tl.atomic_add(counts + expert, 1, mask=known), mask=known)
    if tl.program_id(0) == 0:
        tl.store(counts + E, shared)


@triton.jit(do_not_specialize=["most"])
def _plan(
    counts, first, of_tiles, most, E: tl.constexpr, EB: tl.constexpr, HEIGHT: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The tiles of each expert, one expert's behind another's, and the expert of each tile."""
    expert = tl.arange(0, EB)
    needed = (tl.load(counts + expert, mask=expert <= E, other=0) + HEIGHT - 1) // HEIGHT
    ends = tl.cumsum(needed, axis=0)
    tile = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    of = tl.sum((ends[None, :] <= tile[:, None]).to(tl.int32), axis=1)
    tl.store(of_tiles + tile, tl.where(of <= E, of, -1), mask=tile < most)
    if tl.program_id(0) == 0:
        tl.store(first + expert, ends - needed, mask=expert <= E)


@triton.jit(do_not_specialize=["pairs"])
def _order(ids, ranks, first, order, pairs, HEIGHT: tl.constexpr, BLOCK: tl.constexpr):
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known = pair < pairs
    tile = tl.load(first + tl.load(ids + pair, mask=known, other=0), mask=known, other=0)
    tl.store(order + tile * HEIGHT + tl.load(ranks + pair, mask=known, other=0), pair, mask=known)
