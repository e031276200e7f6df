"""A mixture-of-experts layer over a prompt in Triton: pairs by expert, gate-up with SwiGLU, down, sum with norm.

Tiles of pairs go through their expert; gate and up columns alternate in a tile, so one product makes both and the
activation needs no second pass. The shared expert is one more expert that has every row. The result of each pair is
rounded once and the sum over a row's pairs, in slot order, once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from ling_runtime.ops.activation import swiglu
from ling_runtime.ops.registry import variant
from ling_runtime.ops.triton.linear import precision, row_tile_product
from ling_runtime.ops.triton.moe import _clamps, activated, settle
from ling_runtime.ops.triton.prompt_linear import WideTiles, tiles_of
from ling_runtime.ops.triton.prompt_sort import Sorted, sort_pairs

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.ops.moe_layer import MoeWeights
    from ling_runtime.ops.registry import Kernels

UP_TILES = WideTiles(128, 128, 64, 8, 4)
DOWN_TILES = WideTiles(128, 128, 64, 8, 3)
MOST = 8192
"""Rows that go through a layer at a time: what bounds the results of pairs, nine of D values a row."""


@variant("prompt_moe", "triton", "rounding", "activation in fp32, shared expert inside the wide sum, K front to back")
def moe_prompt(
    x: Tensor, residual: Tensor, norm: Tensor, eps: float, rows: int, weights: MoeWeights, kernels: Kernels
) -> tuple[Tensor, Tensor]:
    """x [R, D], of which the first `rows` are real -> (norm of the sum with the residual, the sum)."""
    parts = [
        _part(part, before, norm, eps, min(rows - i * MOST, len(part)), weights, kernels)
        for i, (part, before) in enumerate(zip(x.split(MOST), residual.split(MOST), strict=True))
    ]
    if len(parts) == 1:
        return parts[0]
    normed, total = zip(*parts, strict=True)
    return torch.cat(normed), torch.cat(total)


def _part(
    x: Tensor, residual: Tensor, norm: Tensor, eps: float, rows: int, weights: MoeWeights, kernels: Kernels
) -> tuple[Tensor, Tensor]:
    ids, chosen = kernels["prompt_router"](x, weights.router, kernels)
    ids, chosen = ids[:rows].contiguous(), chosen[:rows].float().contiguous()
    out = experts_of(x, ids, weights)
    extra = None if weights.joined else _shared(x, weights, kernels)
    return settle(out, chosen, residual, norm, eps, extra, weights.ranks)


def _shared(x: Tensor, weights: MoeWeights, kernels: Kernels) -> Tensor | None:
    """A shared expert of another shape than the routed ones."""
    if weights.shared_up is None:
        return None
    hidden = swiglu(kernels["prompt_linear"](x, weights.shared_up, kernels), weights.shared_limit)
    return kernels["prompt_linear"](hidden, weights.shared_down, kernels)  # type: ignore[no-any-return]


def experts_of(
    x: Tensor, ids: Tensor, weights: MoeWeights, up: WideTiles = UP_TILES, down: WideTiles = DOWN_TILES
) -> Tensor:
    """x [>= n, D], ids [n, k] -> results of the pairs [n, s, D]; s = k + 1 with the shared expert's last, if joined.

    Both products work on the same tiles of pairs, so `up` and `down` have the same rows.
    """
    up, down = tiles_of(x.dtype, up), tiles_of(x.dtype, down)
    assert up.rows == down.rows, "one order of pairs serves both products"
    order = sort_pairs(ids, weights.experts, height=up.rows, shared=weights.joined)
    limits = (weights.limit, weights.shared_limit)
    return _through_down(_through_up(x, order, weights.gate_up, ids.shape[1], limits, up), order, weights, ids, down)


def _through_up(
    x: Tensor, order: Sorted, gate_up: Tensor, top: int, limits: tuple[float | None, float | None], tiles: WideTiles
) -> Tensor:
    """-> activated rows [tiles * height, F] in the order of the tiles."""
    width, inner = gate_up.shape[1] // 2, gate_up.shape[2]
    hidden = x.new_empty(order.tiles * order.height, width)
    _up[(triton.cdiv(width, tiles.columns // 2), order.tiles)](
        x, gate_up, hidden, order.pairs, order.experts, order.first, order.counts, *_clamps(limits),
        len(order.counts) - 1, inner, width, top, tiles.rows, tiles.columns, tiles.depth, precision(x.dtype),
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return hidden


def _through_down(hidden: Tensor, order: Sorted, weights: MoeWeights, ids: Tensor, tiles: WideTiles) -> Tensor:
    outputs, inner = weights.down.shape[1:]
    rows, top = ids.shape
    out = hidden.new_empty(rows, top + weights.joined, outputs)
    _down[(triton.cdiv(outputs, tiles.columns), order.tiles)](
        hidden, weights.down, out, order.pairs, order.experts, order.first, order.counts, weights.experts, outputs,
        inner, top, out.shape[1], tiles.rows, tiles.columns, min(tiles.depth, triton.next_power_of_2(inner)),
        precision(hidden.dtype), num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return out


@triton.jit
def _members(pairs, first, counts, expert, shared, BM: tl.constexpr):
    """(pair of each of this tile's rows, the shared expert's row instead; which of them there are)."""
    tile = tl.program_id(1)
    place = tl.arange(0, BM)
    local = (tile - tl.load(first + expert)) * BM + place
    live = local < tl.load(counts + expert)
    pair = tl.load(pairs + tile * BM + place, mask=live & (expert < shared), other=0)
    return tl.where(expert < shared, pair, local), live


@triton.jit(do_not_specialize=["shared"])
def _up(
    x, gate_up, hidden, pairs, experts, first, counts, low, high, shared, K: tl.constexpr, F: tl.constexpr,
    TOP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """act(gate, up) of a tile of pairs and BN / 2 columns; even columns of the product are gates, odd ones ups."""
    expert = tl.load(experts + tl.program_id(1))
    if expert >= 0:
        pair, live = _members(pairs, first, counts, expert, shared, BM)
        row = tl.where(expert < shared, pair // TOP, pair)
        column = tl.arange(0, BN)
        of = (column % 2) * F + (tl.program_id(0) * (BN // 2) + column // 2) % F
        weight = gate_up + expert.to(tl.int64) * (2 * F * K)
        total = tl.zeros((BM, BN), tl.float32)
        total = row_tile_product(x, tl.where(live, row, 0), live, K, weight, of, total, K, BK, PRECISION)
        gate, up = tl.split(tl.reshape(total, (BM, BN // 2, 2)))
        act = activated(gate, up, expert, shared, low, high)
        value = tl.program_id(0) * (BN // 2) + tl.arange(0, BN // 2)
        to = hidden + (tl.program_id(1) * BM + tl.arange(0, BM)).to(tl.int64)[:, None] * F + value[None, :]
        tl.store(to, act.to(hidden.dtype.element_ty), mask=live[:, None] & (value < F)[None, :])


@triton.jit(do_not_specialize=["shared"])
def _down(
    hidden, down, out, pairs, experts, first, counts, shared, N: tl.constexpr, K: tl.constexpr, TOP: tl.constexpr,
    S: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of activated pairs through their expert, each result to its row and slot."""
    expert = tl.load(experts + tl.program_id(1))
    if expert >= 0:
        pair, live = _members(pairs, first, counts, expert, shared, BM)
        column = tl.program_id(0) * BN + tl.arange(0, BN)
        weight = down + expert.to(tl.int64) * (N * K)
        total = tl.zeros((BM, BN), tl.float32)
        row = tl.program_id(1) * BM + tl.arange(0, BM)
        total = row_tile_product(hidden, row, live, K, weight, column % N, total, K, BK, PRECISION)
        slot = tl.where(expert < shared, pair // TOP * S + pair % TOP, pair * S + TOP)
        to = out + slot.to(tl.int64)[:, None] * N + column[None, :]
        tl.store(to, total.to(out.dtype.element_ty), mask=live[:, None] & (column < N)[None, :])
