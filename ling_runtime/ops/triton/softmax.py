"""Online softmax over a context in splits: a tile of keys into a split's running sums, and the sum of all splits.

A split leaves unnormalised sums beside their maximum and weight, and nothing else is needed to add it to others. The
surprise: a row may see no key of a tile, or of any so far, and then its maximum is minus infinity, which no score may
be held against; such a row keeps exact zeros, and adds exact zeros.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ling_runtime.ops.triton.linear import product


@triton.jit
def online_softmax(score, values, total, top, weight, PRECISION: tl.constexpr):
    """score [M, N], minus infinity where hidden, and values [N, D] into total [M, D], top and weight [M]."""
    higher = tl.maximum(top, tl.max(score, axis=1))
    level = tl.where(higher == -float("inf"), 0.0, higher)
    share = tl.exp(score - level[:, None])
    fade = tl.exp(top - level)
    weight = weight * fade + tl.sum(share, axis=1)
    total = product(share.to(values.dtype), values, total * fade[:, None], PRECISION)
    return total, higher, weight


@triton.jit
def merge_splits(
    parts, tops, sums, first, used, column, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, NS: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    """`column` of a row's sum over its `used` splits, in their order, STEP at a time; they begin at split `first`.

    NS splits are room for all there can be, and only the maximum is taken over it: a sum of NS values would have
    another order, or other roundings fused away, wherever there is room for more.
    """
    every = tl.arange(0, NS)
    level = tl.max(tl.load(tops + first + every, mask=every < used, other=-float("inf")))
    weight, total = 0.0, tl.zeros((COLUMNS,), tl.float32)
    for begin in range(0, used, STEP):
        split = begin + tl.arange(0, STEP)
        known = split < used
        fade = tl.exp(tl.load(tops + first + split, mask=known, other=-float("inf")) - level)
        weight += tl.sum(tl.load(sums + first + split, mask=known, other=0.0) * fade)
        inside = known[:, None] & (column < WIDTH)[None, :]
        part = tl.load(parts + (first + split[:, None]) * WIDTH + column[None, :], mask=inside, other=0.0)
        total += tl.sum(part * fade[:, None], axis=0)
    return total / weight
