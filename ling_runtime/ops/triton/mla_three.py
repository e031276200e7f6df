"""Absorbed MLA in three kernels instead of five, for steps of few rows: prepare, attend in splits, end.

Absorbing queries and placing latents need nothing of each other, so they are programs of one launch. The end merges one
row's splits and takes the sum back to values in the same program, which leaves out a round trip; every block of value
columns merges again what its neighbour merges. At one row that is a megabyte from the cache, at many rows it is more
than the launch it saves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from ling_runtime.config import TILE
from ling_runtime.memory.latent import PAGE
from ling_runtime.ops.registry import variant
from ling_runtime.ops.triton.launch import enter, launch, leave
from ling_runtime.ops.triton.linear import precision
from ling_runtime.ops.triton.mla import LONGEST, SPLIT_PAGES, attend_splits, mla_window_triton
from ling_runtime.ops.triton.mla_place import absorb_tile, angles, place_key, place_latent, place_of, turn_queries

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.memory.latent import LatentView
    from ling_runtime.ops.mla import MlaWeights

END_COLUMNS, END_SPLITS, END_WARPS = 32, 32, 8
"""Value columns of an ending program, splits that it adds at a time, and its warps."""
PLACING = tl.constexpr(3)
"""Programs of a row besides those that absorb: the latent, the rotated key, the rotated queries."""


@variant("mla_window", "triton_three", "rounding", "as triton; the way back to values is summed without tensor cores")
def mla_window_three(
    projected: Tensor, cache: LatentView, weights: MlaWeights, split_pages: int = SPLIT_PAGES
) -> Tensor:
    """projected [R, H (nope + p) + r + p + H] holding q|latent|k_rope|gate -> o [R, H v]; writes the cache."""
    window = cache.window
    if window.rows > LONGEST or window.counts is not None:
        return mla_window_triton(projected, cache, weights)
    heads, nope, rank = weights.key_up.shape
    rope, values = 2 * weights.rope.shape[-1], weights.value_up.shape[2]
    table, starts, real = cache.table, window.start_index, window.real_rows
    query = projected.new_empty(projected.shape[0], heads, rank + rope)
    block, tiles = min(128, triton.next_power_of_2(rank)), triton.cdiv(real, TILE)
    absorbing = triton.cdiv(rank, block) * heads * tiles
    _prepare[(absorbing + PLACING.value * real,)](
        projected, weights.key_up, weights.kv_norm, weights.rope, query, cache.rows, table, starts, window.rows,
        table.shape[1], projected.shape[1], weights.eps, real, absorbing, heads, nope, rank, rope, block,
        triton.next_power_of_2(nope), triton.next_power_of_2(rank), triton.next_power_of_2(heads),
        triton.next_power_of_2(rope // 2), PAGE, TILE, precision(projected.dtype), **launch(), num_warps=4,
    )  # fmt: skip
    parts = attend_splits(query, cache.rows, table, starts, window.rows, rank, weights.scale, split_pages)
    out = projected.new_empty(projected.shape[0], heads * values)
    columns = min(END_COLUMNS, triton.next_power_of_2(values))
    splits, padded = parts.sums.shape[2], parts.sums.shape[1]
    _end[(triton.cdiv(values, columns), heads, len(out))](
        *parts, starts, weights.value_up, projected, out, window.rows, real, splits, padded, projected.shape[1],
        heads, rank, values, columns, triton.next_power_of_2(rank), triton.next_power_of_2(splits),
        min(END_SPLITS, triton.next_power_of_2(splits)), PAGE * split_pages, **launch(), num_warps=END_WARPS,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["rows", "absorbing"])
def _prepare(
    projected, key_up, kv_norm, rope, query, cache, table, starts, T, pages, P, eps, rows, absorbing, H: tl.constexpr,
    NOPE: tl.constexpr, RANK: tl.constexpr, ROPE: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, RB: tl.constexpr,
    HB: tl.constexpr, PB: tl.constexpr, PAGE: tl.constexpr, TM: tl.constexpr, PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """The first `absorbing` programs move queries into latent space; the rest place rows, a part of one each."""
    enter(PDL)
    program = tl.program_id(0)
    if program < absorbing:
        BLOCKS: tl.constexpr = (RANK + BN - 1) // BN
        part, head, tile = program % BLOCKS, program // BLOCKS % H, program // (BLOCKS * H)
        absorb_tile(projected, key_up, query, rows, P, part, head, tile, NOPE, RANK, ROPE, H, BN, BK, TM, PRECISION)
    else:
        row, part = (program - absorbing) // PLACING, (program - absorbing) % PLACING
        position, to = place_of(cache, table, starts, row, T, pages, RANK + ROPE, PAGE)
        source = projected + row * P + H * (NOPE + ROPE)
        if part == 0:
            place_latent(source, kv_norm, to, eps, RANK, RB)
        else:
            cos, sin = angles(rope, position, ROPE, PB)
            if part == 1:
                place_key(source, to, cos, sin, RANK, ROPE, PB)
            else:
                turn_queries(projected, query, row, P, cos, sin, H, NOPE, RANK, ROPE, HB, PB)
    leave(PDL)


@triton.jit
def _end(
    parts, tops, sums, starts, value_up, projected, out, T, real, splits, padded, P, H: tl.constexpr,
    RANK: tl.constexpr, V: tl.constexpr, BN: tl.constexpr, RB: tl.constexpr, NS: tl.constexpr, STEP: tl.constexpr,
    KEYS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One row and head, a block of value columns: splits merged in their order, to values, gated; zero if padded."""
    enter(PDL)
    head, row = tl.program_id(1), tl.program_id(2)
    column, place = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, RB)
    total = tl.zeros((BN,), tl.float32)
    if row < real:
        at = value_up + (head * RANK + place[:, None]) * V + column[None, :]
        up = tl.load(at, mask=(place < RANK)[:, None] & (column < V)[None, :], other=0.0)
        gate = tl.load(projected + row * P + (P - H) + head).to(tl.float32)
        request = row // T
        used = (tl.load(starts + request) + T - 1) // KEYS + 1
        base = (request * padded + row % T * H + head) * splits
        context = _merged_row(parts, tops, sums, base, used, place, RANK, NS, STEP)
        context = context.to(up.dtype).to(tl.float32)
        total = tl.sum(context[:, None] * up.to(tl.float32), axis=0).to(up.dtype).to(tl.float32)
        total = total * (1.0 / (1.0 + tl.exp(-gate))).to(up.dtype).to(tl.float32)
    tl.store(out + row * (H * V) + head * V + column, total.to(out.dtype.element_ty), mask=column < V)
    leave(PDL)


@triton.jit
def _merged_row(parts, tops, sums, base, used, place, RANK: tl.constexpr, NS: tl.constexpr, STEP: tl.constexpr):
    """One pair's latent sum at `place`; splits past its own position add exact zeros.

    Sums are added over STEP splits only at the end, so that no step waits for one before its loads.
    """
    every = tl.arange(0, NS)
    top = tl.load(tops + base + every, mask=every < used, other=-float("inf"))
    weight = tl.load(sums + base + every, mask=every < used, other=0.0)
    split, column = tl.arange(0, STEP)[:, None], place[None, :]
    part = tl.load(parts + (base + split) * RANK + column, mask=(split < used) & (column < RANK), other=0.0)
    level = tl.max(top)
    weight = tl.sum(weight * tl.exp(top - level))
    total = part * tl.exp(tl.load(tops + base + split, mask=split < used, other=-float("inf")) - level)
    for step in tl.static_range(1, NS // STEP):
        split = step * STEP + tl.arange(0, STEP)[:, None]
        part = tl.load(parts + (base + split) * RANK + column, mask=(split < used) & (column < RANK), other=0.0)
        total += part * tl.exp(tl.load(tops + base + split, mask=split < used, other=-float("inf")) - level)
    return tl.sum(total, axis=0) / weight
