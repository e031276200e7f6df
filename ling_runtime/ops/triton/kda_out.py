"""KDA's output projection in Triton: heads arrive gated but not normed, and are scaled after their part of the product.

A block of the product's depth is one head, so its norm is one factor per row and head on that block's sum. It is made
here from the parts of the sum of squares that the recurrence left, so nothing lies between recurrence and product.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from ling_runtime.config import TILE
from ling_runtime.ops.triton.launch import enter, launch, leave
from ling_runtime.ops.triton.linear import Tiles, precision, product

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.ops.kda import KdaWeights

OUT_TILES = Tiles(16, 0, 2, 4)
"""The depth is a head's width."""


def normed_linear(gated: Tensor, squares: Tensor, weights: KdaWeights, rows: int, tiles: Tiles = OUT_TILES) -> Tensor:
    """gated [R, H d], of which `rows` are real, over the root of the mean of squares [R, H, parts], through
    weights.out -> [R, D].
    """
    outputs, inner = weights.out.shape
    heads, parts = squares.shape[1:]
    out = gated.new_empty(gated.shape[0], outputs)
    _normed_linear[(triton.cdiv(outputs, tiles.columns), triton.cdiv(len(gated), TILE))](
        gated, squares, weights.out, out, rows, len(gated), outputs, weights.eps, heads, inner // heads, parts,
        tiles.columns, TILE, precision(gated.dtype), **launch(), num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["real", "rows"])
def _normed_linear(
    gated, squares, weight, out, real, rows, N, eps, H: tl.constexpr, d: tl.constexpr, PARTS: tl.constexpr,
    BN: tl.constexpr, TM: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Padded rows are zero."""
    row = tl.program_id(1) * TM + tl.arange(0, TM)
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    channel, part = tl.arange(0, d), tl.arange(0, PARTS)
    mine = weight + (column % N)[None, :] * (H * d) + channel[:, None]
    known = (row < real)[:, None]
    rows_of, parts_of = gated + row[:, None] * (H * d) + channel[None, :], squares + row[:, None] * H * PARTS + part
    total = tl.zeros((TM, BN), tl.float32)
    enter(PDL)
    for head in range(H):
        squared = tl.sum(tl.load(parts_of + head * PARTS, mask=known, other=0.0), axis=1)
        a, b = tl.load(rows_of + head * d, mask=known, other=0.0), tl.load(mine + head * d)
        part_of = product(a, b, tl.zeros((TM, BN), tl.float32), PRECISION)
        total += part_of * tl.rsqrt(squared / d + eps)[:, None]
    inside = (row < rows)[:, None] & (column < N)[None, :]
    tl.store(out + row[:, None] * N + column[None, :], total.to(out.dtype.element_ty), mask=inside)
    leave(PDL)
