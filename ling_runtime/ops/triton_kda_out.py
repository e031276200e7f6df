"""KDA's output projection in Triton, with each head's norm and gate on the way in.

A block of the product's depth is one head, so norm and gate happen where the rows are loaded anyway. Every program does
them again for itself; that costs less than a kernel between the recurrence and the product, whose weights can then
be fetched while the recurrence runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from ling_runtime.config import TILE
from ling_runtime.ops.triton_launch import enter, launch, leave, warm
from ling_runtime.ops.triton_linear import Tiles, precision, product

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.ops.kda import KdaWeights

OUT_TILES = Tiles(16, 0, 4, 4)
"""The depth is a head's width."""


def gated_linear(raw: Tensor, projected: Tensor, weights: KdaWeights, rows: int, tiles: Tiles = OUT_TILES) -> Tensor:
    """raw [R, H d] fp32, of which `rows` are real, normed and gated by head, through weights.out -> [R, D]."""
    outputs, inner = weights.out.shape
    width = len(weights.o_norm)
    out = projected.new_empty(raw.shape[0], outputs)
    _gated_linear[(triton.cdiv(outputs, tiles.columns), triton.cdiv(len(raw), TILE))](
        raw, projected, weights.o_norm, weights.out, out, rows, len(raw), outputs, weights.eps, inner // width, width,
        tiles.columns, TILE, precision(projected.dtype), **launch(), num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["real", "rows"])
def _gated_linear(
    raw, projected, norm, weight, out, real, rows, N, eps, H: tl.constexpr, d: tl.constexpr, BN: tl.constexpr,
    TM: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Padded rows are zero."""
    row = tl.program_id(1) * TM + tl.arange(0, TM)
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    channel = tl.arange(0, d)
    warm(weight, column % N, H * d, H * d, BN, PDL)
    scale = tl.load(norm + channel).to(tl.float32)
    enter(PDL)
    known = (row < real)[:, None] & (channel < d)[None, :]
    total = tl.zeros((TM, BN), tl.float32)
    for head in range(H):
        at = head * d + channel
        o = tl.load(raw + row[:, None] * (H * d) + at[None, :], mask=known, other=0.0)
        gate = tl.load(projected + row[:, None] * (5 * H * d + H) + 4 * H * d + at[None, :], mask=known, other=0.0)
        b = tl.load(weight + (column % N)[None, :] * (H * d) + at[:, None])
        opened = 1.0 / (1.0 + tl.exp(-gate.to(tl.float32)))
        value = o * tl.rsqrt(tl.sum(o * o, axis=1) / d + eps)[:, None] * scale[None, :] * opened
        total = product(value.to(weight.dtype.element_ty), b, total, PRECISION)
    inside = (row < rows)[:, None] & (column < N)[None, :]
    tl.store(out + row[:, None] * N + column[None, :], total.to(out.dtype.element_ty), mask=inside)
    leave(PDL)
