"""A DSpark block over its paged context in Triton: heads normed and turned, attention in splits, merge.

Few rows meet thousands of cached ones, so a program has one key head and one range of the context, and the partial
sums of a row are added by another kernel, in the order of the ranges. A block's rows and the query heads that share a
key head are one tensor-core tile. The surprise: no context length leaves the device. Programs for all pages that a
request may ever have are launched, and those past its length leave at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from ling_runtime.config import TILE
from ling_runtime.memory.latent import PAGE
from ling_runtime.ops.registry import variant
from ling_runtime.ops.triton.launch import enter, launch, leave
from ling_runtime.ops.triton.linear import precision, product
from ling_runtime.ops.triton.softmax import merge_splits, online_softmax

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.memory.draft import DeviceBlock
    from ling_runtime.ops.draft_block import HeadNorms

SPLIT_PAGES = 2
"""Pages of one split: 128 keys."""
MERGE_SPLITS = 32
"""Splits added at a time."""


@variant("draft_block", "triton", "rounding", "softmax in fp32 over splits of 128 keys, scale applied to the scores")
def block_attention_triton(
    projected: Tensor, block: DeviceBlock, norms: HeadNorms, layer: int, scale: float, causal: bool,
    split_pages: int = SPLIT_PAGES,
) -> Tensor:  # fmt: skip
    """projected [B T, (H + 2 K) d] holding q|k|v -> [B T, H d]; leaves the block's keys and values in the cache."""
    heads, groups, width = norms.heads, norms.groups, norms.weight.shape[2]
    query = projected.new_empty(projected.shape[0], heads * width)
    _place(projected, block, norms, query, layer)
    batch, pages = block.table.shape
    splits, pairs = triton.cdiv(pages, split_pages), block.rows * heads
    parts = torch.empty(batch, pairs, splits, width, dtype=torch.float32, device=query.device)
    tops = torch.empty(2, batch, pairs, splits, dtype=torch.float32, device=query.device)
    shared = heads // groups
    tiles = triton.cdiv(block.rows * shared, TILE)
    _split_block[(splits, tiles * groups, batch)](
        query, block.cache, block.table, block.starts, parts, tops[0], tops[1], block.rows, pages, splits, scale,
        block.cache.stride(1), block.cache.stride(2) * layer, groups, shared, width,
        max(16, triton.next_power_of_2(width)), PAGE, split_pages, TILE, causal, precision(query.dtype),
        **launch(), num_warps=4, num_stages=2,
    )  # fmt: skip
    out = torch.empty_like(query)
    _merge_block[(pairs, batch)](
        parts, tops[0], tops[1], block.starts, out, block.rows, splits, width, triton.next_power_of_2(width),
        triton.next_power_of_2(splits), MERGE_SPLITS, PAGE * split_pages, **launch(), num_warps=4,
    )  # fmt: skip
    return out


@variant("draft_inject", "triton", "rounding", "the sum of squares is reduced in another order")
def inject_context_triton(projected: Tensor, block: DeviceBlock, norms: HeadNorms) -> None:
    """projected [B T, layers 2 K d] holding k|v of each layer, into the cache at the block's positions."""
    _place(projected, block, norms, projected, 0)


def _place(projected: Tensor, block: DeviceBlock, norms: HeadNorms, query: Tensor, layer: int) -> None:
    """Queries normed and turned into `query`, keys so and values as they are into the cache of `layer` and those
    behind it, as many as there are norms.
    """
    layers, turned, width = norms.weight.shape
    units = turned + norms.groups
    _place_heads[(projected.shape[0], layers * units)](
        projected, norms.weight, torch.view_as_real(block.turns), query, block.cache, block.table, block.starts,
        block.rows, block.table.shape[1], layers * units, norms.eps, layer, block.cache.stride(1),
        block.cache.stride(2), norms.heads, norms.groups, width, triton.next_power_of_2(width // 2), PAGE,
        **launch(), num_warps=1,
    )  # fmt: skip


@triton.jit(do_not_specialize=["T", "pages", "layer"])
def _place_heads(
    projected, norm, turns, query, cache, table, starts, T, pages, units, eps, layer, TOKEN, LAYER, H: tl.constexpr,
    G: tl.constexpr, d: tl.constexpr, PB: tl.constexpr, PAGE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One head of one row: queries stand first in a layer, then keys, then values."""
    enter(PDL)
    row, unit = tl.program_id(0), tl.program_id(1)
    request = row // T
    position = tl.load(starts + request) + row % T
    page = tl.load(table + request * pages + position // PAGE)
    of_layer, head = unit // (H + 2 * G), unit % (H + 2 * G)
    pair = tl.arange(0, PB)
    inside = pair < d // 2
    source = projected + (row * units + unit) * d + 2 * pair
    even = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    odd = tl.load(source + 1, mask=inside, other=0.0).to(tl.float32)
    if head < H + G:
        scale = tl.rsqrt((tl.sum(even * even) + tl.sum(odd * odd)) / d + eps)
        weight = norm + (of_layer * (H + G) + head) * d + 2 * pair
        even = even * scale * tl.load(weight, mask=inside, other=0.0).to(tl.float32)
        odd = odd * scale * tl.load(weight + 1, mask=inside, other=0.0).to(tl.float32)
        cos = tl.load(turns + position * d + 2 * pair, mask=inside, other=0.0)
        sin = tl.load(turns + position * d + 2 * pair + 1, mask=inside, other=0.0)
        even, odd = even * cos - odd * sin, even * sin + odd * cos
    if head < H:
        to = query + (row * H + head) * d + 2 * pair
        tl.store(to, even.to(query.dtype.element_ty), mask=inside)
        tl.store(to + 1, odd.to(query.dtype.element_ty), mask=inside)
    else:
        to = cache + (page * PAGE + position % PAGE) * TOKEN + (layer + of_layer) * LAYER + (head - H) * d + 2 * pair
        tl.store(to, even.to(cache.dtype.element_ty), mask=inside)
        tl.store(to + 1, odd.to(cache.dtype.element_ty), mask=inside)
    leave(PDL)


@triton.jit(do_not_specialize=["T", "pages", "splits"])
def _split_block(
    query, cache, table, starts, parts, tops, sums, T, pages, splits, scale, TOKEN, OF_LAYER, G: tl.constexpr,
    SHARED: tl.constexpr, d: tl.constexpr, DB: tl.constexpr, PAGE: tl.constexpr, SPLIT: tl.constexpr,
    TM: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A tile of (row, query head) pairs of one key head over one split: unnormalised sums, their maxima, weights."""
    enter(PDL)
    split, group, request = tl.program_id(0), tl.program_id(1) % G, tl.program_id(2)
    start = tl.load(starts + request)
    last = start + T - 1
    if split * SPLIT <= last // PAGE:
        place = (tl.program_id(1) // G) * TM + tl.arange(0, TM)
        real = place < T * SHARED
        row, head = place // SHARED, group * SHARED + place % SHARED
        limit = tl.where(real, start + row if CAUSAL else last, -1)
        column, key = tl.arange(0, DB), tl.arange(0, PAGE)
        pair = row * (G * SHARED) + head
        at = query + ((request * T * G * SHARED + pair) * d)[:, None] + column[None, :]
        q = tl.load(at, mask=real[:, None] & (column < d)[None, :], other=0.0)
        total = tl.zeros((TM, DB), tl.float32)
        top = tl.full((TM,), -float("inf"), tl.float32)
        weight = tl.zeros((TM,), tl.float32)
        for page in range(split * SPLIT, tl.minimum((split + 1) * SPLIT, last // PAGE + 1)):
            number = tl.load(table + request * pages + page).to(tl.int64)
            rows = cache + (number * PAGE + key) * TOKEN + OF_LAYER + group * d
            known = (page * PAGE + key <= last)[:, None] & (column < d)[None, :]
            k = tl.load(rows[:, None] + column[None, :], mask=known, other=0.0)
            v = tl.load(rows[:, None] + G * d + column[None, :], mask=known, other=0.0)
            score = product(q, tl.trans(k), tl.zeros((TM, PAGE), tl.float32), PRECISION) * scale
            score = tl.where((page * PAGE + key)[None, :] <= limit[:, None], score, -float("inf"))
            total, top, weight = online_softmax(score, v, total, top, weight, PRECISION)
        to = (request * T * G * SHARED + pair) * splits + split
        tl.store(parts + to[:, None] * d + column[None, :], total, mask=real[:, None] & (column < d)[None, :])
        tl.store(tops + to, top, mask=real)
        tl.store(sums + to, weight, mask=real)
    leave(PDL)


@triton.jit(do_not_specialize=["T", "splits"])
def _merge_block(
    parts, tops, sums, starts, out, T, splits, d: tl.constexpr, DB: tl.constexpr, NS: tl.constexpr, STEP: tl.constexpr,
    KEYS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One (row, head) pair's sum from its splits, in their order."""
    enter(PDL)
    pair = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    column = tl.arange(0, DB)
    used = (tl.load(starts + tl.program_id(1)) + T - 1) // KEYS + 1
    mean = merge_splits(parts, tops, sums, pair * splits, used, column, d, DB, NS, STEP)
    tl.store(out + pair * d + column, mean.to(out.dtype.element_ty), mask=column < d)
    leave(PDL)
