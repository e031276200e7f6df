"""Routed experts: align (row, expert) pairs to tiles, run each tile through its expert, combine.

A tile belongs to one expert and has 16 rows, so a pair's bits depend neither on its neighbours nor on its place. That
is why the two alignments, one tile per expert or one per pair, are bitwise equal and differ only in cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ling_runtime.config import TILE
from ling_runtime.ops.activation import swiglu
from ling_runtime.ops.norm import widen
from ling_runtime.ops.registry import variant

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Alignment:
    """Tiles of pairs: the expert of each tile, and the place of each pair among the tiles' rows."""

    experts: Tensor  # [tiles]
    places: Tensor  # [pairs] into tiles * 16 rows


@variant("moe_align")
def align_by_expert(ids: Tensor, experts: int) -> Alignment:
    """ids [R, k], an expert at most once per row: pairs of an expert share its tiles.

    Up to one tile of rows each expert needs one tile and a row keeps its place in it; more rows are sorted by expert.
    """
    rows, per_row = ids.shape
    if rows <= TILE:
        used, tile = torch.unique(ids, return_inverse=True)
        return Alignment(used, (tile * TILE + torch.arange(rows, device=ids.device).unsqueeze(1)).flatten())
    flat = ids.flatten()
    counts = torch.bincount(flat, minlength=experts)
    tiles = (counts + TILE - 1) // TILE
    first_row, first_pair = (tiles.cumsum(0) - tiles) * TILE, counts.cumsum(0) - counts
    order = flat.argsort(stable=True)
    rank = torch.arange(rows * per_row, device=ids.device) - first_pair[flat[order]]
    places = torch.empty_like(flat)
    places[order] = first_row[flat[order]] + rank
    return Alignment(torch.arange(experts, device=ids.device).repeat_interleave(tiles), places)


@variant("moe_align", "pair_axis", "bitwise")
def align_by_pair(ids: Tensor, experts: int) -> Alignment:
    """ids [R, k]: a tile for each pair. No sort and no counts, worth it while pairs are few."""
    flat = ids.flatten()
    if len(flat) > PAIR_LIMIT:
        return align_by_expert(ids, experts)
    return Alignment(flat, torch.arange(len(flat), device=ids.device) * TILE)


@variant("moe_experts")
def run_experts(x: Tensor, alignment: Alignment, gate_up: Tensor, down: Tensor, limit: float | None) -> Tensor:
    """x [pairs, D] through gate_up [E, 2F, D] and down [E, D, F] of each pair's expert -> [pairs, D]."""
    tiles = len(alignment.experts)
    rows = x.new_zeros(tiles * TILE, x.shape[1])
    rows[alignment.places] = x
    hidden = torch.bmm(rows.view(tiles, TILE, -1), gate_up.index_select(0, alignment.experts).transpose(1, 2))
    out = torch.bmm(swiglu(hidden, limit), down.index_select(0, alignment.experts).transpose(1, 2))
    return out.flatten(0, 1).index_select(0, alignment.places)


@variant("moe_combine")
def combine(out: Tensor, weights: Tensor) -> Tensor:
    """out [R, k, D], weights [R, k] -> [R, D]: a wide sum in slot order, one rounding."""
    return (widen(out) * weights.unsqueeze(-1)).sum(1).to(out.dtype)


PAIR_LIMIT = 64
"""Pairs up to which a tile each is used, the post's `numel <= 64`."""
