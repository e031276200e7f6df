"""Causal MLA over a prompt in Triton: rows to the cache, keys and values of all heads made from it, then attention.

Decoding attends in latent space, scores 576 wide and sums 512; a prompt does not. Keys and values expanded for each
head, 192 and 128 wide, cost 3.4 times less per query and key, and making them costs as much as 410 queries over them:
from some 170 rows on that is the cheaper way, whatever the context. What is kept is the latent cache that decoding
reads. Query tiles and key tiles lie at absolute positions, so a row is computed alike in whatever part it comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl

from ling_runtime.memory.latent import PAGE
from ling_runtime.ops.registry import variant
from ling_runtime.ops.triton.linear import precision, product

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.memory.latent import LatentView
    from ling_runtime.ops.mla import MlaWeights
    from ling_runtime.ops.registry import Kernels


class AttentionTiles(NamedTuple):
    """Queries and keys of a step, warps, and stages of the load pipeline."""

    queries: int
    keys: int
    warps: int
    stages: int


ATTENTION_TILES = AttentionTiles(128, 64, 8, 2)
EXACT_ATTENTION_TILES = AttentionTiles(32, 32, 4, 1)
EXPAND_ROWS, EXPAND_DEPTH = 128, 64


@variant("prompt_mla", "triton", "rounding", "keys and values expanded and rounded, softmax in fp32 over tiles of keys")
def mla_prompt(
    projected: Tensor, cache: LatentView, weights: MlaWeights, kernels: Kernels, tiles: AttentionTiles | None = None  # noqa: ARG001
) -> Tensor:  # fmt: skip
    """projected [R, H (nope + p) + r + p + H] holding q|latent|k_rope|gate -> o [R, H v]; writes the cache."""
    window = cache.window
    assert window.batch == 1, "a prompt is one request's"
    heads, nope, rank = weights.key_up.shape
    rope, start, rows = 2 * weights.rope.shape[-1], window.starts[0], window.real_rows
    stride = projected.shape[1]
    _keep[(rows,)](
        projected, weights.kv_norm, weights.rope, cache.rows, cache.table, start, stride, heads * (nope + rope),
        weights.eps, rank, rope, triton.next_power_of_2(rank), triton.next_power_of_2(rope // 2), PAGE, num_warps=4,
    )  # fmt: skip
    keys = expanded(cache, weights.key_up, start + rows, transposed=False)
    values = expanded(cache, weights.value_up, start + rows, transposed=True)
    return attend_prompt(projected, keys, values, cache, weights, tiles)


def expanded(cache: LatentView, weight: Tensor, length: int, *, transposed: bool) -> Tensor:
    """Cached latents [length, r] times one matrix per head, [H, n, r] or transposed [H, r, n] -> [whole pages, H, n].

    Positions past `length` are zero.
    """
    heads, *matrix = weight.shape
    rank, across = matrix if transposed else reversed(matrix)
    along = (across, 1) if transposed else (1, rank)
    out = weight.new_empty(triton.cdiv(length, PAGE) * PAGE, heads, across)
    small = weight.dtype == torch.float32
    block, rows = min(32 if small else 128, max(16, triton.next_power_of_2(across))), 32 if small else EXPAND_ROWS
    _expand[(triton.cdiv(across, block), triton.cdiv(len(out), rows), heads)](
        cache.rows, cache.table, weight, out, length, len(out), *along, cache.rows.shape[2], rank, across, heads, rows,
        block, 32 if small else EXPAND_DEPTH, PAGE, precision(weight.dtype), num_warps=4 if small else 8, num_stages=3,
    )  # fmt: skip
    return out


def attend_prompt(
    projected: Tensor,
    keys: Tensor,
    values: Tensor,
    cache: LatentView,
    weights: MlaWeights,
    tiles: AttentionTiles | None = None,
) -> Tensor:
    """Queries of `projected` over keys [L, H, nope], the cache's turned key and values [L, H, v] -> [R, H v], gated."""
    heads, nope = keys.shape[1:]
    rope, rank, width = 2 * weights.rope.shape[-1], weights.key_up.shape[2], values.shape[2]
    start, rows = cache.window.starts[0], cache.window.real_rows
    tiles = tiles or (EXACT_ATTENTION_TILES if projected.dtype == torch.float32 else ATTENTION_TILES)
    first, last = start // tiles.queries, triton.cdiv(start + rows, tiles.queries)
    out = projected.new_zeros(len(projected), heads * width)
    _attend_prompt[(last - first, heads)](
        projected, keys, values, cache.rows, cache.table, weights.rope, out, start, rows, first, projected.shape[1],
        weights.scale * LOG2_E, heads, nope, rope, rank, width, max(16, triton.next_power_of_2(nope)),
        max(16, triton.next_power_of_2(rope)), max(16, triton.next_power_of_2(width)), PAGE, tiles.queries, tiles.keys,
        precision(projected.dtype), num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return out


LOG2_E = 1.4426950408889634
"""Scores are scaled by it too, for the exponential that the card has is that of two."""


@triton.jit
def _turned(at, rope, position, pair, known, ROPE: tl.constexpr):
    """The interleaved pairs at `at`, turned by their positions; all [.., pairs]."""
    cos = tl.load(rope + position * ROPE + pair, mask=known, other=0.0)
    sin = tl.load(rope + position * ROPE + ROPE // 2 + pair, mask=known, other=0.0)
    even = tl.load(at + 2 * pair, mask=known, other=0.0).to(tl.float32)
    odd = tl.load(at + 2 * pair + 1, mask=known, other=0.0).to(tl.float32)
    return even * cos - odd * sin, even * sin + odd * cos


@triton.jit(do_not_specialize=["start"])
def _keep(
    projected, kv_norm, rope, cache, table, start, P, QUERIES, eps, RANK: tl.constexpr, ROPE: tl.constexpr,
    RB: tl.constexpr, PB: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """One row: its normed latent and rotated key into the cache."""
    row = tl.program_id(0)
    position = start + row
    source = projected + row * P + QUERIES
    to = cache + (tl.load(table + position // PAGE) * PAGE + position % PAGE) * (RANK + ROPE)
    place, pair = tl.arange(0, RB), tl.arange(0, PB)
    inside, turning = place < RANK, pair < ROPE // 2
    latent = tl.load(source + place, mask=inside, other=0.0).to(tl.float32)
    normed = latent * tl.rsqrt(tl.sum(latent * latent) / RANK + eps)
    normed = normed * tl.load(kv_norm + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(to + place, normed.to(cache.dtype.element_ty), mask=inside)
    even, odd = _turned(source + RANK, rope, position, pair, turning, ROPE)
    tl.store(to + RANK + 2 * pair, even.to(cache.dtype.element_ty), mask=turning)
    tl.store(to + RANK + 2 * pair + 1, odd.to(cache.dtype.element_ty), mask=turning)


@triton.jit(do_not_specialize=["length", "rows"])
def _expand(
    cache, table, weight, out, length, rows, ACROSS: tl.constexpr, DOWN: tl.constexpr, W: tl.constexpr,
    RANK: tl.constexpr, N: tl.constexpr, H: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PAGE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out[row, head] = latent of the row @ weight[head], whose element (k, n) lies at k ACROSS + n DOWN."""
    head = tl.program_id(2)
    row, column = tl.program_id(1) * BM + tl.arange(0, BM), tl.program_id(0) * BN + tl.arange(0, BN)
    live, place = row < length, tl.arange(0, BK)
    source = cache + (tl.load(table + row // PAGE, mask=live, other=0) * PAGE + row % PAGE) * W
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, RANK, BK):
        inside = k + place < RANK
        a = tl.load(source[:, None] + (k + place)[None, :], mask=live[:, None] & inside[None, :], other=0.0)
        at = weight + head * RANK * N + (k + place)[:, None] * ACROSS + column[None, :] * DOWN
        b = tl.load(at, mask=inside[:, None] & (column < N)[None, :], other=0.0)
        total = product(a, b, total, PRECISION)
    to = out + (row[:, None] * H + head) * N + column[None, :]
    tl.store(to, total.to(out.dtype.element_ty), mask=(row < rows)[:, None] & (column < N)[None, :])


@triton.jit
def _some(at, wanted, WHOLE: tl.constexpr):
    """What is `wanted` of a tile, zeros elsewhere; all of it if WHOLE, and then without asking."""
    return tl.load(at) if WHOLE else tl.load(at, mask=wanted, other=0)


@triton.jit
def _over_keys(
    total, top, weight, q, r, keys, values, cache, table, low, high, position, scale, head, H: tl.constexpr,
    NOPE: tl.constexpr, ROPE: tl.constexpr, RANK: tl.constexpr, V: tl.constexpr, NB: tl.constexpr, PB: tl.constexpr,
    VB: tl.constexpr, PAGE: tl.constexpr, BN: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Online softmax over keys `low` to `high`; MASKED where some lie past a query."""
    channel, turn, value = tl.arange(0, NB), tl.arange(0, PB), tl.arange(0, VB)
    for first in range(low, high, BN):
        key = first + tl.arange(0, BN)
        there = key < high
        at = keys + (key[None, :] * H + head) * NOPE + channel[:, None]
        k = _some(at, there[None, :] & (channel < NOPE)[:, None], NB == NOPE and not MASKED)
        page = _some(table + key // PAGE, there, not MASKED)
        turned = cache + (page * PAGE + key % PAGE) * (RANK + ROPE) + RANK
        at = turned[None, :] + turn[:, None]
        c = _some(at, there[None, :] & (turn < ROPE)[:, None], PB == ROPE and not MASKED)
        score = product(q, k, tl.zeros((q.shape[0], BN), tl.float32), PRECISION)
        score = product(r, c, score, PRECISION) * scale
        if MASKED:
            score = tl.where(key[None, :] <= position[:, None], score, -float("inf"))
        higher = tl.maximum(top, tl.max(score, axis=1))
        share = tl.exp2(score - higher[:, None])
        fade = tl.exp2(top - higher)
        weight = weight * fade + tl.sum(share, axis=1)
        at = values + (key[:, None] * H + head) * V + value[None, :]
        v = _some(at, there[:, None] & (value < V)[None, :], VB == V and not MASKED)
        total = product(share.to(v.dtype), v, total * fade[:, None], PRECISION)
        top = higher
    return total, top, weight


@triton.jit(do_not_specialize=["start", "T", "skipped"])
def _attend_prompt(
    projected, keys, values, cache, table, rope, out, start, T, skipped, P, scale, H: tl.constexpr, NOPE: tl.constexpr,
    ROPE: tl.constexpr, RANK: tl.constexpr, V: tl.constexpr, NB: tl.constexpr, PB: tl.constexpr, VB: tl.constexpr,
    PAGE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of queries of one head, the longest first; the tile lies at a multiple of BM."""
    tile, head = skipped + tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1)
    position = tile * BM + tl.arange(0, BM)
    row = position - start
    live = (row >= 0) & (row < T)
    channel, pair, value = tl.arange(0, NB), tl.arange(0, PB // 2), tl.arange(0, VB)
    at = projected + row * P + head * (NOPE + ROPE)
    q = tl.load(at[:, None] + channel[None, :], mask=live[:, None] & (channel < NOPE)[None, :], other=0.0)
    known = live[:, None] & (pair < ROPE // 2)[None, :]
    even, odd = _turned(at[:, None] + NOPE, rope, position[:, None], pair[None, :], known, ROPE)
    r = tl.reshape(tl.join(even, odd), (BM, PB)).to(q.dtype)
    total = tl.zeros((BM, VB), tl.float32)
    top, weight = tl.full((BM,), -float("inf"), tl.float32), tl.zeros((BM,), tl.float32)
    below, end = tile * BM // BN * BN, tl.minimum((tile + 1) * BM, start + T)
    total, top, weight = _over_keys(
        total, top, weight, q, r, keys, values, cache, table, 0, below, position, scale, head, H, NOPE, ROPE, RANK, V,
        NB, PB, VB, PAGE, BN, False, PRECISION,
    )  # fmt: skip
    total, top, weight = _over_keys(
        total, top, weight, q, r, keys, values, cache, table, below, end, position, scale, head, H, NOPE, ROPE, RANK, V,
        NB, PB, VB, PAGE, BN, True, PRECISION,
    )  # fmt: skip
    gate = tl.load(projected + row * P + (P - H) + head, mask=live, other=0.0).to(tl.float32)
    gate = (1.0 / (1.0 + tl.exp(-gate))).to(out.dtype.element_ty).to(tl.float32)
    o = (total / weight[:, None]).to(out.dtype.element_ty).to(tl.float32) * gate[:, None]
    to = out + row[:, None] * (H * V) + head * V + value[None, :]
    tl.store(to, o.to(out.dtype.element_ty), mask=live[:, None] & (value < V)[None, :])
