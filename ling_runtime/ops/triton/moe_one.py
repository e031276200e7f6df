"""A mixture-of-experts layer for one row in four kernels, from the end of attention to the next layer's norm.

Gate, gate-up, down, sum. Every program of gate-up selects the row's experts for itself from the gate's sums, and norms
the part of the row that it multiplies, so neither selection nor the norm is a stage that the next one waits for. That
is two hundred times the same selection, side by side, of numbers that lie in the cache; more rows go the other way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from ling_runtime.config import TILE
from ling_runtime.ops.registry import variant
from ling_runtime.ops.triton.launch import enter, launch, leave
from ling_runtime.ops.triton.linear import precision, product
from ling_runtime.ops.triton.moe import UP_SPLITS, UP_TILES, expert_out, parts_of, settle
from ling_runtime.ops.triton.router import SPLITS, kept, sum_parts
from ling_runtime.ops.triton.router_norm import (
    WHY,
    GateSums,
    moe_block_gate_norm,
    moe_block_gate_norm_bf16,
    norm_gate,
)

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.ops.moe_layer import MoeWeights
    from ling_runtime.ops.registry import Kernels


@variant("moe_block", "triton_select_inside", "rounding", WHY)
def moe_block_select_inside(
    x: Tensor, residual: Tensor, entry: Tensor, norm: Tensor, eps: float, rows: int, weights: MoeWeights,
    kernels: Kernels,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """x [R, D] -> (norm of the sum with the residual, the sum), with the layer's two norms `entry` and `norm`."""
    if rows > 1 or not _fits(weights):
        return moe_block_gate_norm(x, residual, entry, norm, eps, rows, weights, kernels)
    return _one_row(norm_gate(x, residual, entry, weights.router.gate), entry, norm, eps, weights)


@variant("moe_block", "triton_select_inside_bf16", "rounding", f"{WHY}, and meet gate weights in bf16")
def moe_block_select_inside_bf16(
    x: Tensor, residual: Tensor, entry: Tensor, norm: Tensor, eps: float, rows: int, weights: MoeWeights,
    kernels: Kernels,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    if rows > 1 or not _fits(weights):
        return moe_block_gate_norm_bf16(x, residual, entry, norm, eps, rows, weights, kernels)
    return _one_row(norm_gate(x, residual, entry, weights.router.narrow_gate), entry, norm, eps, weights)


def _fits(weights: MoeWeights) -> bool:
    """The shared expert is one of the packed ones, and K divides into parts."""
    return weights.joined and weights.gate_up.shape[2] % (UP_SPLITS * TILE) == 0


def _one_row(sums: GateSums, entry: Tensor, norm: Tensor, eps: float, weights: MoeWeights) -> tuple[Tensor, Tensor]:
    """The layer behind its gate, for the first of `sums`' rows; the rest are padding."""
    router, limits = weights.router, (weights.limit, weights.shared_limit)
    width, inner = weights.gate_up.shape[1] // 2, weights.gate_up.shape[2]
    taken, rows, experts = router.experts_per_row, len(sums.total), weights.experts
    splits, depth = parts_of(inner, UP_SPLITS, UP_TILES)
    hidden = torch.empty(splits, taken + 1, 2 * width, dtype=torch.float32, device=norm.device)
    ids = torch.empty(1, taken, dtype=torch.int64, device=norm.device)
    chosen = torch.empty(1, taken, dtype=torch.float32, device=norm.device)
    columns = triton.cdiv(width, UP_TILES.columns)
    _selected_hidden[(columns * splits, taken + 1)](
        *sums, router.bias, entry, weights.gate_up, ids, chosen, hidden, rows, router.scale, eps, inner, width,
        experts, router.groups, router.kept_groups, taken, triton.next_power_of_2(taken), SPLITS, splits,
        UP_TILES.columns, depth, TILE, precision(weights.gate_up.dtype), **launch(), num_warps=UP_TILES.warps,
        num_stages=UP_TILES.stages,
    )  # fmt: skip
    out = expert_out(hidden, ids, weights.down, limits, experts)
    return settle(out, chosen, sums.total, norm, eps, None, weights.ranks)


@triton.jit
def _keep_choice(picked, expert, score, ids, chosen, scale, TOP: tl.constexpr, SLOTS: tl.constexpr):
    """Ids and weights of the row, as `router.select_row` leaves them, to the bit."""
    place = tl.arange(0, SLOTS)
    weight = tl.zeros((SLOTS,), tl.float32)
    for i in tl.static_range(TOP):
        best = tl.sum(tl.where(place == i, picked, 0))
        weight = tl.where(place == i, tl.max(tl.where(expert == best, score, 0.0)), weight)
    weight = weight / (tl.sum(weight) + 1e-20) * scale
    tl.store(ids + place, picked.to(tl.int64), mask=place < TOP)
    tl.store(chosen + place, weight, mask=place < TOP)


@triton.jit
def _selected_hidden(
    parts, squares, total, bias, norm, gate_up, ids, chosen, hidden, rows, scale, eps, K: tl.constexpr,
    F: tl.constexpr, E: tl.constexpr, GROUPS: tl.constexpr, KEPT: tl.constexpr, TOP: tl.constexpr,
    SLOTS: tl.constexpr, GATES: tl.constexpr, SPLITS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    TM: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Gate|up of the expert in this program's slot, the last of which is the shared one's, over a part of K in fp32."""
    COLUMNS: tl.constexpr = (F + BN - 1) // BN
    SHARE: tl.constexpr = K // SPLITS
    expert = tl.arange(0, E)
    preference = tl.load(bias + expert)
    enter(PDL)
    slot, part = tl.program_id(1), tl.program_id(0) // COLUMNS
    factor = tl.rsqrt(sum_parts(squares, 0, rows, GATES) / K + eps)
    score = 1.0 / (1.0 + tl.exp(-sum_parts(parts, expert, rows * E, GATES) * factor))
    biased = tl.reshape(score + preference, (GROUPS, E // GROUPS))
    masked = tl.reshape(tl.where(kept(biased, GROUPS, E // GROUPS, KEPT)[:, None], biased, -float("inf")), (E,))
    bits = masked.to(tl.int32, bitcast=True)
    order = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64) * 0x100000000 + (E - 1 - expert).to(tl.int64)
    place, mine = tl.arange(0, SLOTS), tl.where(slot == TOP, E, 0)
    picked = tl.zeros((SLOTS,), tl.int32)
    LEAST: tl.constexpr = -0x8000000000000000
    for i in tl.static_range(TOP):
        top = tl.max(order)  # holds score and place: ties go to the lowest place
        best = (E - 1) - (top & 0xFFFFFFFF).to(tl.int32)
        picked = tl.where(place == i, best, picked)
        mine = tl.where(slot == i, best, mine)
        order = tl.where(order == top, LEAST, order)
    if (tl.program_id(0) == 0) & (slot == 0):
        _keep_choice(picked, expert, score, ids, chosen, scale, TOP, SLOTS)
    column = (tl.program_id(0) % COLUMNS) * BN + tl.arange(0, BN)
    first, nought = tl.arange(0, TM) == 0, tl.zeros((TM, BK), tl.int32)
    at = gate_up + mine.to(tl.int64) * (2 * F * K) + (column % F)[None, :] * K
    gate, up = tl.zeros((TM, BN), tl.float32), tl.zeros((TM, BN), tl.float32)
    for k in range(part * SHARE, (part + 1) * SHARE, BK):
        here = k + tl.arange(0, BK)
        b, c = tl.load(at + here[:, None]), tl.load(at + F * K + here[:, None])
        # As tiles of sixteen rows, fifteen of them masked: shorter loads would not be pipelined.
        row = tl.load(total + here[None, :] + nought, mask=first[:, None], other=0.0).to(tl.float32) * factor
        a = (row * tl.load(norm + here[None, :] + nought, mask=first[:, None], other=0.0).to(tl.float32)).to(b.dtype)
        gate, up = product(a, b, gate, PRECISION), product(a, c, up, PRECISION)
    to = hidden + (part * (TOP + 1) + slot) * (2 * F) + column[None, :] + tl.zeros((TM, BN), tl.int32)
    known = first[:, None] & (column < F)[None, :]
    tl.store(to, gate, mask=known)
    tl.store(to + F, up, mask=known)
    leave(PDL)
