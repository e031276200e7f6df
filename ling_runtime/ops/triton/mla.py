"""Absorbed MLA over a window in Triton: prepare, attend in splits, merge, back to values.

A split is a fixed range of absolute positions, and a row's parts are merged in the order of splits, with exact zeros
from those past its own position; so a row gets the same bits in every window. Heads share the cached row, so 16
(row, head) pairs make one tensor-core tile and the cache is read once per tile, not once per head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl

from ling_runtime.config import TILE, WINDOW_ROWS
from ling_runtime.memory.latent import PAGE
from ling_runtime.ops.mla import mla_window
from ling_runtime.ops.registry import variant
from ling_runtime.ops.triton.launch import WRITTEN, enter, launch, leave
from ling_runtime.ops.triton.linear import precision, product
from ling_runtime.ops.triton.mla_place import (
    absorb_tile,
    angles,
    place_key,
    place_latent,
    place_of,
    turn_queries,
    up_tile,
)
from ling_runtime.ops.triton.softmax import merge_splits, online_softmax

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.memory.latent import LatentView
    from ling_runtime.ops.mla import MlaWeights

SPLIT_PAGES = 2
"""Pages of one split: 128 keys."""
MERGE_SPLITS, MERGE_COLUMNS = 64, 64
"""Splits added at a time, always as many, and columns of a merging program."""


@variant("mla_window", "triton", "rounding", "softmax in fp32 over splits of 128 keys, scale applied to the scores")
def mla_window_triton(
    projected: Tensor, cache: LatentView, weights: MlaWeights, split_pages: int = SPLIT_PAGES
) -> Tensor:
    """projected [R, H (nope + p) + r + p + H] holding q|latent|k_rope|gate -> o [R, H v]; writes the cache."""
    window = cache.window
    if window.rows > WINDOW_ROWS or window.counts is not None:
        return mla_window(projected, cache, weights)
    heads, nope, rank = weights.key_up.shape
    rope, values = 2 * weights.rope.shape[-1], weights.value_up.shape[2]
    table, starts = cache.table, window.start_index
    real, tiles = window.real_rows, triton.cdiv(projected.shape[0], TILE)
    query = projected.new_empty(projected.shape[0], heads, rank + rope)
    block = min(128, triton.next_power_of_2(rank))
    _absorb[(triton.cdiv(rank, block), heads, tiles)](
        projected, weights.key_up, query, real, projected.shape[1], nope, rank, rope, heads, block,
        triton.next_power_of_2(nope), TILE, precision(projected.dtype), **launch(), num_warps=4,
    )  # fmt: skip
    _place[(real,)](
        projected, weights.kv_norm, weights.rope, query, cache.rows, table, starts, window.rows, table.shape[1],
        projected.shape[1], weights.eps, heads, nope, rank, rope, triton.next_power_of_2(rank),
        triton.next_power_of_2(heads), triton.next_power_of_2(rope // 2), PAGE, **launch(), num_warps=4,
    )  # fmt: skip
    parts = attend_splits(query, cache.rows, table, starts, window.rows, rank, weights.scale, split_pages)
    context = _merged(parts, query, starts, window.rows, PAGE * split_pages)
    out = projected.new_empty(projected.shape[0], heads * values)
    block = min(32, triton.next_power_of_2(values))
    _to_values[(triton.cdiv(values, block), heads, tiles)](
        context, weights.value_up, projected, out, real, len(out), projected.shape[1], rank, values, heads, block,
        min(128, triton.next_power_of_2(rank)), TILE, precision(projected.dtype), **launch(), num_warps=4,
    )  # fmt: skip
    return out


class Parts(NamedTuple):
    """Unnormalised sums of every split of the context, their maxima and weights, for each (row, head) pair."""

    sums: Tensor  # [B, pairs, splits, r]
    tops: Tensor  # [B, pairs, splits]
    weights: Tensor  # [B, pairs, splits]


def attend_splits(
    query: Tensor, rows: Tensor, table: Tensor, starts: Tensor, window: int, rank: int, scale: float, pages: int
) -> Parts:
    """query [R, H, r + p] against the pages of `table` [B, n], `pages` of them, a power of two, a split."""
    heads, batch = query.shape[1], table.shape[0]
    splits, tiles = triton.cdiv(table.shape[1], pages), triton.cdiv(window * heads, TILE)
    sums = torch.empty(batch, tiles * TILE, splits, rank, dtype=torch.float32, device=query.device)
    tops = torch.empty(2, batch, tiles * TILE, splits, dtype=torch.float32, device=query.device)
    rope = query.shape[2] - rank
    _split[(splits, tiles, batch)](
        query, rows, table, starts, sums, tops[0], tops[1], window, table.shape[1], splits, scale, heads, rank, rope,
        max(16, triton.next_power_of_2(rank)), max(16, triton.next_power_of_2(rope)), PAGE, pages, TILE,
        precision(query.dtype),
        **launch(), num_warps=4, num_stages=2,
    )  # fmt: skip
    return Parts(sums, tops[0], tops[1])


def _merged(parts: Parts, query: Tensor, starts: Tensor, window: int, keys: int) -> Tensor:
    """Latent sums [R, H, r] of the window's rows; a split has `keys` keys."""
    batch, padded, splits, rank = parts.sums.shape
    heads = query.shape[1]
    context = query.new_empty(query.shape[0], heads, rank)
    block = min(MERGE_COLUMNS, triton.next_power_of_2(rank))
    _merge[(triton.cdiv(rank, block), window * heads, batch)](
        *parts, starts, context, window, splits, padded, heads, rank, block,
        triton.next_power_of_2(splits), MERGE_SPLITS, keys, **launch(), num_warps=4,
    )  # fmt: skip
    return context


@triton.jit
def _absorb(
    projected, key_up, query, rows, P, NOPE: tl.constexpr, RANK: tl.constexpr, ROPE: tl.constexpr, H: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, TM: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    part, head, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    weight = up_tile(key_up, part, head, NOPE, RANK, BN, BK)
    enter(PDL)
    absorb_tile(projected, weight, query, rows, P, part, head, tile, NOPE, RANK, ROPE, H, BN, BK, TM, PRECISION)
    leave(PDL)


@triton.jit
def _place(
    projected, kv_norm, rope, query, cache, table, starts, T, pages, P, eps, H: tl.constexpr, NOPE: tl.constexpr,
    RANK: tl.constexpr, ROPE: tl.constexpr, RB: tl.constexpr, HB: tl.constexpr, PB: tl.constexpr, PAGE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One row: its normed latent and rotated key into the cache, its rotated queries beside the absorbed ones."""
    enter(PDL)
    row = tl.program_id(0)
    position, to = place_of(cache, table, starts, row, T, pages, RANK + ROPE, PAGE)
    source = projected + row * P + H * (NOPE + ROPE)
    place_latent(source, kv_norm, to, eps, RANK, RB)
    cos, sin = angles(rope, position, ROPE, PB)
    place_key(source, to, cos, sin, RANK, ROPE, PB)
    turn_queries(projected, query, row, P, cos, sin, H, NOPE, RANK, ROPE, HB, PB)
    leave(PDL)


@triton.jit
def _split(
    query, cache, table, starts, parts, tops, sums, T, pages, splits, scale, H: tl.constexpr, RANK: tl.constexpr,
    ROPE: tl.constexpr, RB: tl.constexpr, PB: tl.constexpr, PAGE: tl.constexpr, SPLIT: tl.constexpr,
    TM: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One tile of (row, head) pairs over the pages of one split: unnormalised sums, their maxima and weights."""
    split, tile, request = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start = tl.load(starts + request, cache_modifier=WRITTEN)
    last = (start + T - 1) // PAGE
    mine = split * SPLIT + tl.arange(0, SPLIT)
    numbers = tl.load(table + request * pages + mine, mask=mine <= last, other=0, cache_modifier=WRITTEN)
    enter(PDL)
    pair = tile * TM + tl.arange(0, TM)
    real = pair < T * H
    limit = tl.where(real, start + pair // H, -1)
    rank, rope, key = tl.arange(0, RB), tl.arange(0, PB), tl.arange(0, PAGE)
    W: tl.constexpr = RANK + ROPE
    at = query + (request * T * H + pair)[:, None] * W
    q = tl.load(at + rank[None, :], mask=real[:, None] & (rank < RANK)[None, :], other=0.0)
    r = tl.load(at + RANK + rope[None, :], mask=real[:, None] & (rope < ROPE)[None, :], other=0.0)
    total = tl.zeros((TM, RB), tl.float32)
    top = tl.full((TM,), -float("inf"), tl.float32)
    weight = tl.zeros((TM,), tl.float32)
    for page in range(split * SPLIT, tl.minimum((split + 1) * SPLIT, last + 1)):
        number = tl.sum(tl.where(mine == page, numbers, 0))
        rows = cache + (number * PAGE + key) * W
        c = tl.load(rows[:, None] + rank[None, :], mask=(rank < RANK)[None, :], other=0.0)
        k = tl.load(rows[:, None] + RANK + rope[None, :], mask=(rope < ROPE)[None, :], other=0.0)
        score = product(q, tl.trans(c), tl.zeros((TM, PAGE), tl.float32), PRECISION)
        score = product(r, tl.trans(k), score, PRECISION) * scale
        score = tl.where((page * PAGE + key)[None, :] <= limit[:, None], score, -float("inf"))
        total, top, weight = online_softmax(score, c, total, top, weight, PRECISION)
    at = (request * tl.num_programs(1) * TM + pair) * splits + split
    tl.store(parts + at[:, None] * RANK + rank[None, :], total, mask=real[:, None] & (rank < RANK)[None, :])
    tl.store(tops + at, top, mask=real)
    tl.store(sums + at, weight, mask=real)
    leave(PDL)


@triton.jit
def _merge(
    parts, tops, sums, starts, context, T, splits, padded, H: tl.constexpr, RANK: tl.constexpr, BD: tl.constexpr,
    NS: tl.constexpr, STEP: tl.constexpr, KEYS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One pair's latent sum from its splits, in their order."""
    pair, request = tl.program_id(1), tl.program_id(2)
    column = tl.program_id(0) * BD + tl.arange(0, BD)
    used = (tl.load(starts + request, cache_modifier=WRITTEN) + T - 1) // KEYS + 1
    enter(PDL)
    first = (request * padded + pair) * splits
    mean = merge_splits(parts, tops, sums, first, used, column, RANK, BD, NS, STEP)
    to = context + ((request * T * H + pair) * RANK + column)
    tl.store(to, mean.to(context.dtype.element_ty), mask=column < RANK)
    leave(PDL)


@triton.jit
def _to_values(
    context, value_up, projected, out, real, rows, P, RANK: tl.constexpr, V: tl.constexpr, H: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, TM: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out[:, head] = context[:, head] @ value_up[head], times the head's gate; zero in padded rows."""
    head = tl.program_id(1)
    row = tl.program_id(2) * TM + tl.arange(0, TM)
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    total = tl.zeros((TM, BN), tl.float32)
    gate = tl.load(projected + row * P + (P - H) + head, mask=row < real, other=0.0, cache_modifier=WRITTEN)
    enter(PDL)
    for k in range(0, RANK, BK):
        place = k + tl.arange(0, BK)
        known = (row < real)[:, None] & (place < RANK)[None, :]
        a = tl.load(context + (row[:, None] * H + head) * RANK + place[None, :], mask=known, other=0.0)
        inside = (place < RANK)[:, None] & (column < V)[None, :]
        b = tl.load(value_up + (head * RANK + place[:, None]) * V + column[None, :], mask=inside, other=0.0)
        total = product(a, b, total, PRECISION)
    gate = (1.0 / (1.0 + tl.exp(-gate.to(tl.float32)))).to(out.dtype.element_ty).to(tl.float32)
    total = tl.where((row < real)[:, None], total.to(out.dtype.element_ty).to(tl.float32) * gate[:, None], 0.0)
    to = out + row[:, None] * (H * V) + head * V + column[None, :]
    tl.store(to, total.to(out.dtype.element_ty), mask=(row < rows)[:, None] & (column < V)[None, :])
    leave(PDL)
