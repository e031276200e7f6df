"""The end of attention and the router in two kernels instead of three: the norm is a factor of the gate's product.

Gate programs add the residual for their own part of K, multiply by the norm's weight alone and leave their part of the
sum of squares; selection scales the sums. The normed rows, which experts need, are written beside selection by other
programs of its launch. What it changes: rows are rounded before the norm's factor instead of behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl

from ling_runtime.config import TILE
from ling_runtime.ops.registry import variant
from ling_runtime.ops.triton.launch import enter, launch, leave
from ling_runtime.ops.triton.linear import product
from ling_runtime.ops.triton.moe_layer import routed
from ling_runtime.ops.triton.router import GATE_TILES, SPLITS, gate_form, select_row, shares, sum_parts

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ling_runtime.ops.moe_layer import MoeWeights
    from ling_runtime.ops.registry import Kernels
    from ling_runtime.ops.router import RouterWeights

NORM_COLUMNS = 256
"""Columns of a program that writes normed rows beside selection: one warp's."""
WHY = "the norm scales the gate's sums: rows are rounded before it"


@variant("moe_block", "triton_gate_norm", "rounding", WHY)
def moe_block_gate_norm(
    x: Tensor, residual: Tensor, entry: Tensor, norm: Tensor, eps: float, rows: int, weights: MoeWeights,
    kernels: Kernels,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """x [R, D] -> (norm of the sum with the residual, the sum), with the layer's two norms `entry` and `norm`."""
    return gated_block(x, residual, entry, norm, eps, rows, weights, kernels, weights.router.gate)


@variant("moe_block", "triton_gate_norm_bf16", "rounding", f"{WHY}, and meet gate weights in bf16")
def moe_block_gate_norm_bf16(
    x: Tensor, residual: Tensor, entry: Tensor, norm: Tensor, eps: float, rows: int, weights: MoeWeights,
    kernels: Kernels,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return gated_block(x, residual, entry, norm, eps, rows, weights, kernels, weights.router.narrow_gate)


def gated_block(
    x: Tensor, residual: Tensor, entry: Tensor, norm: Tensor, eps: float, rows: int, weights: MoeWeights,
    kernels: Kernels, gate: Tensor, gated: Callable[[Tensor, Tensor, Tensor, Tensor], GateSums] | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The block with weights `gate` [E, D]; `gated` is what sums their product, by default `norm_gate`."""
    sums = (gated or norm_gate)(x, residual, entry, gate)
    normed, ids, chosen = norm_select(sums, entry, eps, weights.router)
    return routed(normed, sums.total, norm, eps, rows, ids, chosen, weights, kernels)


class GateSums(NamedTuple):
    """What the gate's programs leave of R rows, still to be added over the splits and scaled."""

    parts: Tensor
    """[splits, R, E] of the product without the norm's factor."""
    squares: Tensor
    """[splits, R]"""
    total: Tensor
    """[R, D] rows with the residual."""


def norm_gate(x: Tensor, residual: Tensor, norm: Tensor, gate: Tensor) -> GateSums:
    """x, residual [R, D] through gate [E, D]."""
    (rows, inner), experts = x.shape, len(gate)
    share, splits = shares(inner, SPLITS, GATE_TILES.depth)
    parts = torch.empty(splits, rows, experts, dtype=torch.float32, device=x.device)
    squares = torch.empty(splits, rows, dtype=torch.float32, device=x.device)
    total = torch.empty_like(x)
    _norm_gate[(1 + triton.cdiv(experts, GATE_TILES.columns), splits, triton.cdiv(rows, TILE))](
        x, residual, norm, gate, parts, squares, total, rows, experts, inner, share, triton.next_power_of_2(share),
        GATE_TILES.columns, GATE_TILES.depth, TILE, gate_form(x, gate), **launch(), num_warps=GATE_TILES.warps,
        num_stages=GATE_TILES.stages,
    )  # fmt: skip
    return GateSums(parts, squares, total)


def norm_select(sums: GateSums, norm: Tensor, eps: float, weights: RouterWeights) -> tuple[Tensor, Tensor, Tensor]:
    """The gate's sums of rows [R, D] -> (norm of the rows, expert ids [R, k], weights [R, k] fp32)."""
    parts, squares, total = sums
    (rows, inner), experts, taken = total.shape, parts.shape[2], weights.experts_per_row
    normed = torch.empty_like(total)
    ids = torch.empty(rows, taken, dtype=torch.int64, device=total.device)
    chosen = torch.empty(rows, taken, dtype=torch.float32, device=total.device)
    _norm_select[(rows, 1 + triton.cdiv(inner, NORM_COLUMNS))](
        parts, squares, weights.bias, total, norm, ids, chosen, normed, rows, weights.scale, eps, inner, experts,
        weights.groups, weights.kept_groups, taken, triton.next_power_of_2(taken), len(parts), NORM_COLUMNS, **launch(),
        num_warps=1,
    )  # fmt: skip
    return normed, ids, chosen


@triton.jit
def _norm_gate(
    x, residual, norm, gate, parts, squares, total, rows, E: tl.constexpr, K: tl.constexpr, SHARE: tl.constexpr,
    SB: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TM: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """parts[split] [R, E] = ((x + residual) * norm) @ gate^T over this split's share of K; the first program of a split
    keeps the sums and their squares instead, so that no store stands between the others' loads.
    """
    enter(PDL)
    row = tl.program_id(2) * TM + tl.arange(0, TM)
    block, split = tl.program_id(0), tl.program_id(1)
    known = row < rows
    if block == 0:
        place = split * SHARE + tl.arange(0, SB)
        live = known[:, None] & (place < tl.minimum((split + 1) * SHARE, K))[None, :]
        value = _added(x, residual, row[:, None] * K + place[None, :], live)
        tl.store(total + row[:, None] * K + place[None, :], value, mask=live)
        wide = value.to(tl.float32)
        tl.store(squares + split * rows + row, tl.sum(wide * wide, axis=1), mask=known)
    else:
        column = (block - 1) * BN + tl.arange(0, BN)
        sums, nought = tl.zeros((TM, BN), tl.float32), tl.zeros((TM, BK), tl.int32)
        for k in range(0, SHARE, BK):
            place = split * SHARE + k + tl.arange(0, BK)
            inside = place < K
            if K % SHARE == 0 and E % BN == 0:
                b = tl.load(gate + column[None, :] * K + place[:, None])
            else:
                wanted = inside[:, None] & (column < E)[None, :]
                b = tl.load(gate + column[None, :] * K + place[:, None], mask=wanted, other=0.0)
            live = known[:, None] & inside[None, :]
            value = _added(x, residual, row[:, None] * K + place[None, :], live).to(tl.float32)
            # The weight as a tile of rows, too: a shorter load would not be pipelined.
            weight = tl.load(norm + place[None, :] + nought, mask=live, other=0.0).to(tl.float32)
            scaled = value * weight
            sums = product(scaled if PRECISION == "parts" else scaled.to(b.dtype), b, sums, PRECISION)
        wanted = known[:, None] & (column < E)[None, :]
        tl.store(parts + (split * rows + row[:, None]) * E + column[None, :], sums, mask=wanted)
    leave(PDL)


@triton.jit
def _added(x, residual, at, live):
    """The new residual, rounded as rows are."""
    value = tl.load(x + at, mask=live, other=0.0)
    return (value.to(tl.float32) + tl.load(residual + at, mask=live, other=0.0).to(tl.float32)).to(value.dtype)


@triton.jit
def _norm_select(
    parts, squares, bias, total, norm, ids, chosen, normed, rows, scale, eps, D: tl.constexpr, E: tl.constexpr,
    GROUPS: tl.constexpr, KEPT: tl.constexpr, TOP: tl.constexpr, SLOTS: tl.constexpr, SPLITS: tl.constexpr,
    BN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A row's first program selects, its others write the normed row."""
    row, part = tl.program_id(0), tl.program_id(1)
    column = tl.maximum(part - 1, 0) * BN + tl.arange(0, BN)
    preference = tl.load(bias + tl.arange(0, E))
    weight = tl.load(norm + column, mask=column < D, other=0.0).to(tl.float32)
    enter(PDL)
    if part == 0:
        logits = sum_parts(parts, row * E + tl.arange(0, E), rows * E, SPLITS)
        logits *= tl.rsqrt(sum_parts(squares, row, rows, SPLITS) / D + eps)
        select_row(logits, preference, ids, chosen, row, scale, E, GROUPS, KEPT, TOP, SLOTS)
    else:
        inside = column < D
        value = tl.load(total + row * D + column, mask=inside, other=0.0).to(tl.float32)
        value = value * tl.rsqrt(sum_parts(squares, row, rows, SPLITS) / D + eps) * weight
        tl.store(normed + row * D + column, value.to(normed.dtype.element_ty), mask=inside)
    leave(PDL)
