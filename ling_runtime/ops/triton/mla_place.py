"""What comes before absorbed attention: queries into latent space, and the window's latents and keys into the cache.

Pieces of programs and no kernel of its own, for launches that cut the work differently. Each loads what it needs before
it stores: a store waits for its value, and later loads of the program with it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ling_runtime.ops.triton.linear import product


@triton.jit
def up_tile(key_up, part, head, NOPE: tl.constexpr, RANK: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """A part of the columns of key_up[head], [BK, BN]."""
    column, place = part * BN + tl.arange(0, BN), tl.arange(0, BK)
    inside = (place < NOPE)[:, None] & (column < RANK)[None, :]
    return tl.load(key_up + (head * NOPE + place[:, None]) * RANK + column[None, :], mask=inside, other=0.0)


@triton.jit
def absorb_tile(
    projected, weight, query, rows, P, part, head, tile, NOPE: tl.constexpr, RANK: tl.constexpr, ROPE: tl.constexpr,
    H: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """query[:, head, :RANK] = q_nope @ weight, a part of the columns of key_up[head], for a tile of rows."""
    row = tile * TM + tl.arange(0, TM)
    column, place = part * BN + tl.arange(0, BN), tl.arange(0, BK)
    at = projected + row[:, None] * P + head * (NOPE + ROPE) + place[None, :]
    a = tl.load(at, mask=(row < rows)[:, None] & (place < NOPE)[None, :], other=0.0)
    total = product(a, weight, tl.zeros((TM, BN), tl.float32), PRECISION)
    to = query + (row[:, None] * H + head) * (RANK + ROPE) + column[None, :]
    tl.store(to, total.to(query.dtype.element_ty), mask=(row < rows)[:, None] & (column < RANK)[None, :])


@triton.jit
def place_of(cache, table, starts, row, T, pages, W: tl.constexpr, PAGE: tl.constexpr):
    """(position of a row of the window, where the cache keeps it)."""
    request = row // T
    position = tl.load(starts + request) + row % T
    page = tl.load(table + request * pages + position // PAGE)
    return position, cache + (page * PAGE + position % PAGE) * W


@triton.jit
def place_latent(source, kv_norm, to, eps, RANK: tl.constexpr, RB: tl.constexpr):
    place = tl.arange(0, RB)
    inside = place < RANK
    latent = tl.load(source + place, mask=inside, other=0.0).to(tl.float32)
    normed = latent * tl.rsqrt(tl.sum(latent * latent) / RANK + eps)
    normed = normed * tl.load(kv_norm + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(to + place, normed.to(to.dtype.element_ty), mask=inside)


@triton.jit
def angles(rope, position, ROPE: tl.constexpr, PB: tl.constexpr):
    pair = tl.arange(0, PB)
    turning = pair < ROPE // 2
    cos = tl.load(rope + position * ROPE + pair, mask=turning, other=0.0)
    return cos, tl.load(rope + position * ROPE + ROPE // 2 + pair, mask=turning, other=0.0)


@triton.jit
def place_key(source, to, cos, sin, RANK: tl.constexpr, ROPE: tl.constexpr, PB: tl.constexpr):
    pair = tl.arange(0, PB)
    turning = pair < ROPE // 2
    even = tl.load(source + RANK + 2 * pair, mask=turning, other=0.0).to(tl.float32)
    odd = tl.load(source + RANK + 2 * pair + 1, mask=turning, other=0.0).to(tl.float32)
    tl.store(to + RANK + 2 * pair, (even * cos - odd * sin).to(to.dtype.element_ty), mask=turning)
    tl.store(to + RANK + 2 * pair + 1, (even * sin + odd * cos).to(to.dtype.element_ty), mask=turning)


@triton.jit
def turn_queries(
    projected, query, row, P, cos, sin, H: tl.constexpr, NOPE: tl.constexpr, RANK: tl.constexpr, ROPE: tl.constexpr,
    HB: tl.constexpr, PB: tl.constexpr,
):  # fmt: skip
    """The rotated part of one row's queries, all heads."""
    pair, head = tl.arange(0, PB), tl.arange(0, HB)
    known = (head < H)[:, None] & (pair < ROPE // 2)[None, :]
    at = projected + row * P + head[:, None] * (NOPE + ROPE) + NOPE + 2 * pair[None, :]
    even = tl.load(at, mask=known, other=0.0).to(tl.float32)
    odd = tl.load(at + 1, mask=known, other=0.0).to(tl.float32)
    to = query + (row * H + head[:, None]) * (RANK + ROPE) + RANK + 2 * pair[None, :]
    tl.store(to, (even * cos[None, :] - odd * sin[None, :]).to(query.dtype.element_ty), mask=known)
    tl.store(to + 1, (even * sin[None, :] + odd * cos[None, :]).to(query.dtype.element_ty), mask=known)
