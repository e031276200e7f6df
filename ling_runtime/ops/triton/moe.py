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
from ling_runtime.ops.triton.launch import WRITTEN, enter, launch, leave
from ling_runtime.ops.triton.linear import Tiles, precision, product, row_tile_product
from ling_runtime.ops.triton.norm import add_rms_norm_triton, norm_row
from ling_runtime.parallel.communicator import ALONE

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.parallel.communicator import Communicator

    Limits = tuple[float | None, float | None]

UP_TILES = Tiles(32, 128, 4, 3)
DOWN_TILES = Tiles(64, 64, 4, 4)
UP_SPLITS = 4
NO_LIMIT, _NO_EXPERT = float("inf"), -3


def expert_hidden(
    x: Tensor, ids: Tensor, gate_up: Tensor, limits: Limits, shared: int | None, tiles: Tiles | None = None,
    splits: int = UP_SPLITS, *, plan: Tensor | None = None, raw: bool = False,
) -> Tensor:  # fmt: skip
    """x [R, D], ids [rows, k], gate_up [E, 2F, D] -> act(gate, up) of each pair [rows, s, F].

    With `shared` the number of the shared expert, every row has a last slot for it and s = k + 1; `limits` clamp the
    routed experts and the shared one. K is added in `splits` parts whatever the rows; a single row has too few
    programs to fill the chip, so there each part is a program's own, and what returns is gate|up of each part in fp32
    [splits, s, 2F], for `expert_out` to add and activate.

    Two switches for measuring what they would cost: `plan` says who meets whom instead of `ids`
    (`align`), and `raw` leaves gate|up in fp32, [rows, s, 2F] for more rows than one, to another kernel.
    """
    rows, width, inner = len(ids), gate_up.shape[1] // 2, gate_up.shape[2]
    slots = ids.shape[1] + (shared is not None)
    tiles, one = tiles or UP_TILES, rows == 1
    splits, depth = parts_of(inner, splits, tiles)
    shape = (splits, slots, 2 * width) if one else (rows, slots, width * (1 + raw))
    hidden = torch.empty(shape, dtype=torch.float32 if one or raw else x.dtype, device=x.device)
    columns = triton.cdiv(width, tiles.columns)
    _expert_hidden[_grid(rows, slots, columns * splits if one else columns, plan)](
        x, ids if plan is None else plan, gate_up, hidden, rows, *_clamps(limits),
        _NO_EXPERT if shared is None else shared, inner, width, ids.shape[1], slots, triton.next_power_of_2(slots),
        splits, tiles.columns, depth, TILE, precision(x.dtype), one, plan is not None, raw, **launch(),
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return hidden


def expert_out(
    hidden: Tensor, ids: Tensor, down: Tensor, limits: Limits, shared: int | None, tiles: Tiles | None = None, *,
    plan: Tensor | None = None, active: bool = False,
) -> Tensor:  # fmt: skip
    """What `expert_hidden` returned, through down [E, D, F] of each pair's expert -> [rows, s, D]; `active` says that a
    kernel between them has activated one row, too. `ids` and `plan` are read before the wait of dependent launches: the
    launch right in front may not have written them.
    """
    rows, (parts, slots) = len(ids), hidden.shape[:2]
    one = rows == 1 and not active
    outputs, inner = down.shape[1:]
    tiles = tiles or DOWN_TILES
    out = down.new_empty(rows, slots, outputs)
    _expert_out[_grid(rows, slots, triton.cdiv(outputs, tiles.columns), plan)](
        hidden, ids if plan is None else plan, down, out, rows, *_clamps(limits),
        _NO_EXPERT if shared is None else shared, outputs, inner, ids.shape[1], slots, triton.next_power_of_2(slots),
        parts if one else 1, tiles.columns, min(tiles.depth, triton.next_power_of_2(inner)), TILE,
        precision(down.dtype), one, plan is not None, **launch(), num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return out


def parts_of(inner: int, splits: int, tiles: Tiles) -> tuple[int, int]:
    """(parts of K, depth of a tile that divides one): one part where K does not divide."""
    if splits == 1 or inner % (splits * TILE):
        return 1, tiles.depth
    return splits, min(tiles.depth, _power_in(inner // splits))


def _power_in(number: int) -> int:
    """The largest power of two that divides `number`."""
    return number & -number


def _clamps(limits: Limits) -> list[float]:
    return [NO_LIMIT if limit is None else limit for limit in limits]


def settle(
    out: Tensor, weights: Tensor, residual: Tensor, norm: Tensor, eps: float, extra: Tensor | None,
    ranks: Communicator = ALONE,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """out [n, s, D] times weights [n, k] in slot order, plus the slot past k and `extra`, rounded; added to `residual`
    [R, D] and normed -> (normed, sum). Rows past n have no experts. Of several `ranks` the parts are summed first: this
    one's is what it would add to a residual of zeros.
    """
    if ranks.size > 1:
        part = settle(out, weights, ranks.zeros(residual), norm, eps, extra)[1]
        return add_rms_norm_triton(ranks.reduce(part), residual, norm, eps)
    real, slots, width = out.shape
    normed, total = torch.empty_like(residual), torch.empty_like(residual)
    _settle[(residual.shape[0],)](
        out, weights, residual if extra is None else extra, residual, norm, normed, total, real, eps, width,
        weights.shape[1], slots, triton.next_power_of_2(width), extra is not None, **launch(), num_warps=8,
    )  # fmt: skip
    return normed, total


def _grid(rows: int, slots: int, columns: int, plan: Tensor | None) -> tuple[int, int, int]:
    """Programs: column tiles of a pair side by side, pairs of a tile, tiles; with a plan as many blocks as pairs."""
    if plan is not None:
        return columns, rows * slots, 1
    return columns, min(rows, TILE) * slots, triton.cdiv(rows, TILE)


@triton.jit
def _members(
    ids, rows, shared, TOP: tl.constexpr, S: tl.constexpr, SP: tl.constexpr, TM: tl.constexpr, ONE: tl.constexpr,
    PLANNED: tl.constexpr, FROM: tl.constexpr,
):  # fmt: skip
    """(this program's expert, which of the tile's rows chose it, their pairs), expert -1 where others serve it."""
    tile, pair = tl.program_id(2), tl.program_id(1)
    row = tile * TM + tl.arange(0, TM)
    if PLANNED:
        expert = tl.load(ids + pair, cache_modifier=FROM)
        pairs = tl.load(ids + tl.num_programs(1) + pair * TM + tl.arange(0, TM), cache_modifier=FROM)
        chosen = pairs < rows * S
        pairs = tl.where(chosen, pairs, 0)
    elif ONE:
        expert = tl.load(ids + pair, mask=pair < TOP, other=shared, cache_modifier=FROM)
        chosen, pairs = row == 0, tl.where(row == 0, pair, 0)
    else:
        slot = tl.arange(0, SP)
        known = (row < rows)[:, None] & (slot < S)[None, :]
        order = row[:, None] * S + slot[None, :]
        named = tl.load(
            ids + row[:, None] * TOP + slot[None, :], mask=known & (slot < TOP)[None, :], other=-1, cache_modifier=FROM
        )
        named = tl.where(known & (slot == TOP)[None, :], shared, named)
        mine = tile * TM * S + pair
        routed = (mine < rows * S) & (mine % S < TOP)
        expert = tl.load(ids + mine // S * TOP + mine % S, mask=routed, other=-2, cache_modifier=FROM)
        expert = tl.where((mine < rows * S) & (mine % S == TOP), shared, expert)
        match = named == expert
        first = tl.min(tl.min(tl.where(match, order, rows * S), axis=1), axis=0)
        chosen, pairs = tl.sum(match.to(tl.int32), axis=1) > 0, tl.sum(tl.where(match, order, 0), axis=1)
        expert = tl.where(first == mine, expert, -1)
    return expert, chosen, pairs


@triton.jit
def activated(gate, up, expert, shared, low, high):
    limit = tl.where(expert == shared, high, low)
    return tl.minimum(gate / (1.0 + tl.exp(-gate)), limit) * tl.minimum(tl.maximum(up, -limit), limit)


@triton.jit
def _expert_hidden(
    x, ids, gate_up, hidden, rows, low, high, shared, K: tl.constexpr, F: tl.constexpr, TOP: tl.constexpr,
    S: tl.constexpr, SP: tl.constexpr, SPLITS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TM: tl.constexpr,
    PRECISION: tl.constexpr, ONE: tl.constexpr, PLANNED: tl.constexpr, RAW: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    enter(PDL)
    expert, chosen, pairs = _members(ids, rows, shared, TOP, S, SP, TM, ONE, PLANNED, "")
    COLUMNS: tl.constexpr = (F + BN - 1) // BN
    SHARE: tl.constexpr = K // SPLITS
    if expert >= 0:
        row = pairs // S if PLANNED else tl.program_id(2) * TM + tl.arange(0, TM)
        column = (tl.program_id(0) % COLUMNS) * BN + tl.arange(0, BN)
        part = tl.program_id(0) // COLUMNS
        weight = gate_up + expert.to(tl.int64) * (2 * F * K)
        place = tl.arange(0, BK)
        gate, up = tl.zeros((TM, BN), tl.float32), tl.zeros((TM, BN), tl.float32)
        gates, ups = tl.zeros((TM, BN), tl.float32), tl.zeros((TM, BN), tl.float32)
        at = (column % F)[None, :] * K
        for k in range(part * SHARE, part * SHARE + (SHARE if ONE else K), BK):
            if SHARE % BK == 0:
                a = tl.load(x + row[:, None] * K + (k + place)[None, :], mask=chosen[:, None], other=0.0)
                b = tl.load(weight + at + (k + place)[:, None])
                c = tl.load(weight + F * K + at + (k + place)[:, None])
            else:
                inside = k + place < K
                known = chosen[:, None] & inside[None, :]
                a = tl.load(x + row[:, None] * K + (k + place)[None, :], mask=known, other=0.0)
                b = tl.load(weight + at + (k + place)[:, None], mask=inside[:, None], other=0.0)
                c = tl.load(weight + F * K + at + (k + place)[:, None], mask=inside[:, None], other=0.0)
            gate, up = product(a, b, gate, PRECISION), product(a, c, up, PRECISION)
            if SPLITS > 1 and not ONE:
                ends = (k + BK) % SHARE == 0
                gates, ups = tl.where(ends, gates + gate, gates), tl.where(ends, ups + up, ups)
                gate, up = tl.where(ends, 0.0, gate), tl.where(ends, 0.0, up)
        if ONE or RAW:
            if not ONE:
                gate, up = gates + gate, ups + up
            where = hidden + (part * S + pairs[:, None]) * (2 * F) + column[None, :]
            known = chosen[:, None] & (column < F)[None, :]
            tl.store(where, gate, mask=known)
            tl.store(where + F, up, mask=known)
        else:
            act = activated(gates + gate, ups + up, expert, shared, low, high)
            where = hidden + pairs[:, None] * F + column[None, :]
            tl.store(where, act.to(hidden.dtype.element_ty), mask=chosen[:, None] & (column < F)[None, :])
    leave(PDL)


@triton.jit
def _expert_out(
    hidden, ids, down, out, rows, low, high, shared, N: tl.constexpr, K: tl.constexpr, TOP: tl.constexpr,
    S: tl.constexpr, SP: tl.constexpr, PARTS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TM: tl.constexpr,
    PRECISION: tl.constexpr, ONE: tl.constexpr, PLANNED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # Names were written before `_expert_hidden`, in front of this kernel.
    expert, chosen, pairs = _members(ids, rows, shared, TOP, S, SP, TM, ONE, PLANNED, WRITTEN)
    enter(PDL)
    if expert >= 0:
        column = tl.program_id(0) * BN + tl.arange(0, BN)
        weight = down + expert.to(tl.int64) * (N * K)
        if ONE:
            total = tl.zeros((TM, BN), tl.float32)
            place = tl.arange(0, BK)
            for block in tl.static_range((K + BK - 1) // BK):
                here = block * BK + place
                inside = here < K
                mine = tl.sum(pairs) if PLANNED else tl.program_id(1)
                at = hidden + mine * (2 * K) + here
                b = tl.load(weight + (column % N)[None, :] * K + here[:, None], mask=inside[:, None], other=0.0)
                gate, up = tl.load(at, mask=inside, other=0.0), tl.load(at + K, mask=inside, other=0.0)
                for part in tl.static_range(1, PARTS):
                    gate += tl.load(at + part * (2 * S * K), mask=inside, other=0.0)
                    up += tl.load(at + part * (2 * S * K) + K, mask=inside, other=0.0)
                act = activated(gate, up, expert, shared, low, high).to(down.dtype.element_ty)
                a = tl.where(chosen[:, None], act[None, :], tl.zeros((TM, BK), down.dtype.element_ty))
                total = product(a, b, total, PRECISION)
        else:
            zero = tl.zeros((TM, BN), tl.float32)
            total = row_tile_product(hidden, pairs, chosen, K, weight, column % N, zero, K, BK, PRECISION)
        where = out + pairs[:, None] * N + column[None, :]
        tl.store(where, total.to(out.dtype.element_ty), mask=chosen[:, None] & (column < N)[None, :])
    leave(PDL)


@triton.jit
def _settle(
    out, weights, extra, residual, norm, normed, total, real, eps, D: tl.constexpr, TOP: tl.constexpr,
    S: tl.constexpr, BLOCK: tl.constexpr, EXTRA: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside = column < D
    known = inside & (row < real)
    factor = tl.load(norm + column, mask=inside, other=0.0)
    enter(PDL)
    value = tl.zeros((BLOCK,), tl.float32)
    for s in tl.static_range(S):
        part = tl.load(out + (row * S + s) * D + column, mask=known, other=0.0).to(tl.float32)
        value += part * tl.load(weights + row * TOP + s, mask=row < real, other=0.0) if s < TOP else part
    if EXTRA:
        value += tl.load(extra + row * D + column, mask=known, other=0.0).to(tl.float32)
    before = tl.load(residual + row * D + column, mask=inside, other=0.0)
    value = (value.to(before.dtype).to(tl.float32) + before.to(tl.float32)).to(before.dtype)
    tl.store(total + row * D + column, value, mask=inside)
    after = norm_row(value.to(tl.float32), factor, eps, D)
    tl.store(normed + row * D + column, after.to(normed.dtype.element_ty), mask=inside)
    leave(PDL)
