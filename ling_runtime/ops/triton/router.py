"""The router in Triton: gate products split over K, then one program per row that adds the parts and selects.

The gate stays as precise as the reference's: its fp32 weights are three bf16 numbers each, whose products with bf16
rows are exact. Splitting K is what fills the chip with a matrix of 512 columns; the split is fixed and the parts are
added in order, so a row's bits depend on nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from ling_runtime.config import TILE
from ling_runtime.ops.registry import variant
from ling_runtime.ops.triton.launch import enter, launch, leave
from ling_runtime.ops.triton.linear import INTERPRETED, Tiles, precision, product

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.ops.router import RouterWeights

SPLITS = 10
GATE_TILES = Tiles(32, 64, 4, 4)


@variant("router", "triton", "rounding", "gate products are added in ten parts of K")
def route_triton(
    x: Tensor, weights: RouterWeights, tiles: Tiles = GATE_TILES, splits: int = SPLITS
) -> tuple[Tensor, Tensor]:
    """x [R, D] -> (expert ids [R, k], weights [R, k] fp32)."""
    return _routed(x, weights, weights.gate, tiles, splits)


@variant("router", "triton_bf16", "rounding", "gate weights and rows in bf16, added in ten parts of K")
def route_triton_bf16(x: Tensor, weights: RouterWeights) -> tuple[Tensor, Tensor]:
    """The same with half the gate's bytes."""
    return _routed(x, weights, weights.narrow_gate, GATE_TILES, SPLITS)


def gate_form(x: Tensor, gate: Tensor) -> str:
    """How rows and gate are multiplied: fp32 weights by bf16 rows in three products, which lose nothing."""
    if gate.dtype == torch.bfloat16 or x.dtype == torch.float32:
        return precision(gate.dtype)
    return "ieee" if INTERPRETED else "parts"


def shares(inner: int, splits: int, depth: int) -> tuple[int, int]:
    """(K of a split, splits), at most `splits` of them and none without a part of K: `inner` cut at whole depths."""
    share = triton.cdiv(inner, splits * depth) * depth
    return share, triton.cdiv(inner, share)


def _routed(x: Tensor, weights: RouterWeights, gate: Tensor, tiles: Tiles, splits: int) -> tuple[Tensor, Tensor]:
    rows, inner = x.shape
    experts, kept = gate.shape[0], weights.experts_per_row
    assert experts & (experts - 1) == 0 and experts // weights.groups >= 2, "selection works on powers of two"  # noqa: PT018
    share, splits = shares(inner, splits, tiles.depth)
    parts = torch.empty(splits, rows, experts, dtype=torch.float32, device=x.device)
    _gate[(triton.cdiv(experts, tiles.columns), splits, triton.cdiv(rows, TILE))](
        x, gate, parts, rows, experts, inner, share, tiles.columns, tiles.depth, TILE, gate_form(x, gate),
        **launch(), num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    ids = torch.empty(rows, kept, dtype=torch.int64, device=x.device)
    chosen = torch.empty(rows, kept, dtype=torch.float32, device=x.device)
    _select[(rows,)](
        parts, weights.bias, ids, chosen, rows, weights.scale, experts, weights.groups, weights.kept_groups, kept,
        triton.next_power_of_2(kept), splits, **launch(), num_warps=1,
    )  # fmt: skip
    return ids, chosen


@triton.jit
def _gate(
    x, gate, parts, rows, E: tl.constexpr, K: tl.constexpr, SHARE: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    TM: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """parts[split] [R, E] = x @ gate^T over this split's share of K."""
    row = tl.program_id(2) * TM + tl.arange(0, TM)
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    split = tl.program_id(1)
    enter(PDL)
    total = tl.zeros((TM, BN), tl.float32)
    for k in range(0, SHARE, BK):
        place = split * SHARE + k + tl.arange(0, BK)
        inside = place < K
        known = (row < rows)[:, None] & inside[None, :]
        a = tl.load(x + row[:, None] * K + place[None, :], mask=known, other=0.0)
        at = gate + column[None, :] * K + place[:, None]
        if K % SHARE == 0 and E % BN == 0:
            b = tl.load(at)
        else:
            b = tl.load(at, mask=inside[:, None] & (column < E)[None, :], other=0.0)
        total = product(a if PRECISION == "parts" else a.to(b.dtype), b, total, PRECISION)
    known = (row < rows)[:, None] & (column < E)[None, :]
    tl.store(parts + (split * rows + row[:, None]) * E + column[None, :], total, mask=known)
    leave(PDL)


@triton.jit
def sum_parts(parts, at, step, SPLITS: tl.constexpr):
    total = tl.load(parts + at)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(parts + at + split * step)
    return total


@triton.jit
def _select(
    parts, bias, ids, chosen, rows, scale, E: tl.constexpr, GROUPS: tl.constexpr, KEPT: tl.constexpr,
    TOP: tl.constexpr, SLOTS: tl.constexpr, SPLITS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    expert = tl.arange(0, E)
    preference = tl.load(bias + expert)
    enter(PDL)
    row = tl.program_id(0)
    logits = sum_parts(parts, row * E + expert, rows * E, SPLITS)
    select_row(logits, preference, ids, chosen, row, scale, E, GROUPS, KEPT, TOP, SLOTS)
    leave(PDL)


@triton.jit
def select_row(
    logits, preference, ids, chosen, row, scale, E: tl.constexpr, GROUPS: tl.constexpr, KEPT: tl.constexpr,
    TOP: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Grouped top-k of one row of logits [E]; ties go to the lowest index."""
    expert = tl.arange(0, E)
    score = 1.0 / (1.0 + tl.exp(-logits))
    biased = tl.reshape(score + preference, (GROUPS, E // GROUPS))
    masked = tl.reshape(tl.where(kept(biased, GROUPS, E // GROUPS, KEPT)[:, None], biased, -float("inf")), (E,))
    bits = masked.to(tl.int32, bitcast=True)
    # Integers in the order of the floats: a warp compares them in one instruction.
    order = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    LEAST: tl.constexpr = -0x80000000
    score = score.to(tl.int32, bitcast=True)  # not negative, so already in order
    slot = tl.arange(0, SLOTS)
    picked = tl.zeros((SLOTS,), tl.int32)
    weight = tl.zeros((SLOTS,), tl.int32)
    for i in tl.static_range(TOP):
        best = tl.min(tl.where(order == tl.max(order), expert, E))
        picked = tl.where(slot == i, best, picked)
        weight = tl.where(slot == i, tl.max(tl.where(expert == best, score, 0)), weight)
        order = tl.where(expert == best, LEAST, order)
    weight = weight.to(tl.float32, bitcast=True)
    weight = weight / (tl.sum(weight) + 1e-20) * scale
    tl.store(ids + row * TOP + slot, picked.to(tl.int64), mask=slot < TOP)
    tl.store(chosen + row * TOP + slot, weight, mask=slot < TOP)


@triton.jit
def kept(biased, GROUPS: tl.constexpr, SIZE: tl.constexpr, KEPT: tl.constexpr):
    """Which groups stay: the KEPT best by the sum of their two best scores, the lower index first on a tie."""
    first = tl.max(biased, axis=1)
    at = tl.argmax(biased, axis=1, tie_break_left=True)
    second = tl.max(tl.where(tl.arange(0, SIZE)[None, :] == at[:, None], -float("inf"), biased), axis=1)
    total = first + second
    group = tl.arange(0, GROUPS)
    other = tl.sum(tl.where(group[:, None] == group[None, :], total[:, None], 0.0), axis=0)
    ahead = (other[None, :] > total[:, None]) | ((other[None, :] == total[:, None]) & (group[None, :] < group[:, None]))
    return tl.sum(ahead.to(tl.int32), axis=1) < KEPT
