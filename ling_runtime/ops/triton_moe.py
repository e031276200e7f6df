"""The routed and the shared expert for a few rows in Triton: gate-up with SwiGLU, down, and the layer's end.

No pair is sorted and no row is gathered. An expert meets a row at most once, so the 16 rows of the window are
themselves the tile of every expert: the program of the first pair that names an expert reads its weights once,
multiplies all 16 rows and stores those that chose it; the programs of its other pairs leave at once. The shared expert
is one more name that every row chooses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from ling_runtime.config import TILE
from ling_runtime.ops.triton_launch import enter, launch, leave
from ling_runtime.ops.triton_linear import Tiles, precision, product, row_tile_product
from ling_runtime.ops.triton_norm import norm_row

if TYPE_CHECKING:
    from torch import Tensor

UP_TILES = Tiles(32, 128, 4, 4)
DOWN_TILES = Tiles(128, 64, 4, 4)
NO_LIMIT, _NO_EXPERT = float("inf"), -3


def expert_hidden(
    x: Tensor, ids: Tensor, gate_up: Tensor, limits: tuple[float | None, float | None], shared: int | None,
    tiles: Tiles = UP_TILES,
) -> Tensor:  # fmt: skip
    """x [R, D], ids [rows, k], gate_up [E, 2F, D] -> act(gate, up) of each pair [rows, s, F].

    With `shared` the number of the shared expert, every row has a last slot for it and s = k + 1; `limits` clamp the
    routed experts and the shared one.
    """
    rows, width, inner = len(ids), gate_up.shape[1] // 2, gate_up.shape[2]
    slots = ids.shape[1] + (shared is not None)
    hidden = x.new_empty(rows, slots, width)
    low, high = (NO_LIMIT if limit is None else limit for limit in limits)
    _expert_hidden[_grid(rows, slots, triton.cdiv(width, tiles.columns))](
        x, ids, gate_up, hidden, rows, low, high, _NO_EXPERT if shared is None else shared, inner, width,
        ids.shape[1], slots, triton.next_power_of_2(slots),
        tiles.columns, tiles.depth, TILE, precision(x.dtype), **launch(), num_warps=tiles.warps,
        num_stages=tiles.stages,
    )  # fmt: skip
    return hidden


def expert_out(hidden: Tensor, ids: Tensor, down: Tensor, shared: int | None, tiles: Tiles = DOWN_TILES) -> Tensor:
    """hidden [rows, s, F] through down [E, D, F] of each pair's expert -> [rows, s, D]."""
    rows, slots, inner = hidden.shape
    outputs = down.shape[1]
    out = hidden.new_empty(rows, slots, outputs)
    _expert_out[_grid(rows, slots, triton.cdiv(outputs, tiles.columns))](
        hidden, ids, down, out, rows, _NO_EXPERT if shared is None else shared, outputs, inner, ids.shape[1], slots,
        triton.next_power_of_2(slots),
        tiles.columns, min(tiles.depth, triton.next_power_of_2(inner)), TILE, precision(hidden.dtype),
        **launch(), num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return out


def settle(
    out: Tensor, weights: Tensor, residual: Tensor, norm: Tensor, eps: float, extra: Tensor | None
) -> tuple[Tensor, Tensor]:
    """out [n, s, D] times weights [n, k] in slot order, plus the slot past k and `extra`, rounded; added to `residual`
    [R, D] and normed -> (normed, sum). Rows past n have no experts.
    """
    real, slots, width = out.shape
    normed, total = torch.empty_like(residual), torch.empty_like(residual)
    _settle[(residual.shape[0],)](
        out, weights, residual if extra is None else extra, residual, norm, normed, total, real, eps, width,
        weights.shape[1], slots, triton.next_power_of_2(width), extra is not None, **launch(), num_warps=8,
    )  # fmt: skip
    return normed, total


def _grid(rows: int, slots: int, columns: int) -> tuple[int, int, int]:
    """Programs: column tiles of a pair side by side, pairs of a tile, tiles."""
    return columns, min(rows, TILE) * slots, triton.cdiv(rows, TILE)


@triton.jit
def _members(ids, rows, shared, TOP: tl.constexpr, S: tl.constexpr, SP: tl.constexpr, TM: tl.constexpr):
    """(this program's expert, which of the tile's rows chose it, their pairs), expert -1 where others serve it."""
    tile, pair = tl.program_id(2), tl.program_id(1)
    row = tile * TM + tl.arange(0, TM)
    slot = tl.arange(0, SP)
    known = (row < rows)[:, None] & (slot < S)[None, :]
    order = row[:, None] * S + slot[None, :]
    named = tl.load(ids + row[:, None] * TOP + slot[None, :], mask=known & (slot < TOP)[None, :], other=-1)
    named = tl.where(known & (slot == TOP)[None, :], shared, named)
    mine = tile * TM * S + pair
    expert = tl.load(ids + mine // S * TOP + mine % S, mask=(mine < rows * S) & (mine % S < TOP), other=-2)
    expert = tl.where((mine < rows * S) & (mine % S == TOP), shared, expert)
    match = named == expert
    first = tl.min(tl.min(tl.where(match, order, rows * S), axis=1), axis=0)
    pairs = tl.sum(tl.where(match, order, 0), axis=1)
    return tl.where(first == mine, expert, -1), tl.sum(match.to(tl.int32), axis=1) > 0, pairs


@triton.jit
def _expert_hidden(
    x, ids, gate_up, hidden, rows, low, high, shared, K: tl.constexpr, F: tl.constexpr, TOP: tl.constexpr,
    S: tl.constexpr, SP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TM: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    enter(PDL)
    expert, chosen, pairs = _members(ids, rows, shared, TOP, S, SP, TM)
    if expert >= 0:
        row = tl.program_id(2) * TM + tl.arange(0, TM)
        column = tl.program_id(0) * BN + tl.arange(0, BN)
        weight = gate_up + expert.to(tl.int64) * (2 * F * K)
        place = tl.arange(0, BK)
        gate = tl.zeros((TM, BN), tl.float32)
        up = tl.zeros((TM, BN), tl.float32)
        at = (column % F)[None, :] * K
        for k in range(0, K, BK):
            inside = k + place < K
            a = tl.load(x + row[:, None] * K + (k + place)[None, :], mask=chosen[:, None] & inside[None, :], other=0.0)
            b = tl.load(weight + at + (k + place)[:, None], mask=inside[:, None], other=0.0)
            c = tl.load(weight + F * K + at + (k + place)[:, None], mask=inside[:, None], other=0.0)
            gate = product(a, b, gate, PRECISION)
            up = product(a, c, up, PRECISION)
        limit = tl.where(expert == shared, high, low)
        act = tl.minimum(gate / (1.0 + tl.exp(-gate)), limit) * tl.minimum(tl.maximum(up, -limit), limit)
        where = hidden + pairs[:, None] * F + column[None, :]
        tl.store(where, act.to(hidden.dtype.element_ty), mask=chosen[:, None] & (column < F)[None, :])
    leave(PDL)


@triton.jit
def _expert_out(
    hidden, ids, down, out, rows, shared, N: tl.constexpr, K: tl.constexpr, TOP: tl.constexpr, S: tl.constexpr,
    SP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TM: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    enter(PDL)
    expert, chosen, pairs = _members(ids, rows, shared, TOP, S, SP, TM)
    if expert >= 0:
        column = tl.program_id(0) * BN + tl.arange(0, BN)
        weight = down + expert.to(tl.int64) * (N * K)
        total = row_tile_product(hidden, pairs, chosen, K, weight, column % N, K, BN, BK, TM, PRECISION)
        where = out + pairs[:, None] * N + column[None, :]
        tl.store(where, total.to(out.dtype.element_ty), mask=chosen[:, None] & (column < N)[None, :])
    leave(PDL)


@triton.jit
def _settle(
    out, weights, extra, residual, norm, normed, total, real, eps, D: tl.constexpr, TOP: tl.constexpr,
    S: tl.constexpr, BLOCK: tl.constexpr, EXTRA: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    enter(PDL)
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside = column < D
    known = inside & (row < real)
    value = tl.zeros((BLOCK,), tl.float32)
    for s in tl.static_range(S):
        part = tl.load(out + (row * S + s) * D + column, mask=known, other=0.0).to(tl.float32)
        value += part * tl.load(weights + row * TOP + s, mask=row < real, other=0.0) if s < TOP else part
    if EXTRA:
        value += tl.load(extra + row * D + column, mask=known, other=0.0).to(tl.float32)
    before = tl.load(residual + row * D + column, mask=inside, other=0.0)
    value = (value.to(before.dtype).to(tl.float32) + before.to(tl.float32)).to(before.dtype)
    tl.store(total + row * D + column, value, mask=inside)
    after = norm_row(value.to(tl.float32), norm, column, inside, eps, D)
    tl.store(normed + row * D + column, after.to(normed.dtype.element_ty), mask=inside)
    leave(PDL)
