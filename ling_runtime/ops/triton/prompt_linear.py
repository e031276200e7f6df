"""Matrix products of a prompt's many rows in Triton.

The tile never changes with the number of rows and every sum runs over K front to back, so a row has the same bits
whatever part of the prompt it is computed in; that is what the library's product, chosen by its shape, does not say.
Programs are numbered so that those that run together share rows and weights in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from ling_runtime.ops.registry import variant
from ling_runtime.ops.triton.linear import precision, row_tile_product

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.ops.registry import Kernels


@dataclass(frozen=True)
class WideTiles:
    """Rows, columns and depth of a program's tile, warps, and stages of its load pipeline."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


LINEAR_TILES = WideTiles(128, 128, 64, 8, 4)
EXACT_TILES = WideTiles(32, 32, 32, 4, 2)
"""For fp32, whose products are IEEE and not the tensor core's."""
TOGETHER = 8
"""Row tiles that share a pass over the columns."""


def tiles_of(dtype: torch.dtype, tiles: WideTiles) -> WideTiles:
    """`tiles` for what tensor cores multiply, others for fp32; by dtype alone, never by the number of rows."""
    return EXACT_TILES if dtype == torch.float32 else tiles


@variant("prompt_linear", "triton", "rounding", "one program sums a row over K front to back; the library does not")
def linear_prompt(x: Tensor, weight: Tensor, kernels: Kernels, tiles: WideTiles = LINEAR_TILES) -> Tensor:  # noqa: ARG001
    """x [R, K] @ weight [N, K]^T -> [R, N], for any R."""
    rows, inner = x.shape
    outputs, tiles = weight.shape[0], tiles_of(x.dtype, tiles)
    out = x.new_empty(rows, outputs)
    _wide[(triton.cdiv(rows, tiles.rows) * triton.cdiv(outputs, tiles.columns),)](
        x, weight, out, rows, outputs, x.stride(0), inner, tiles.rows, tiles.columns, tiles.depth, TOGETHER,
        precision(x.dtype), num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return out


@triton.jit
def place_of(tile, tall, across, TOGETHER: tl.constexpr):
    """(row tile, column tile) of a program: down TOGETHER row tiles first, then to the next column."""
    band = tile // (TOGETHER * across)
    high = tl.minimum(tall - band * TOGETHER, TOGETHER)
    within = tile % (TOGETHER * across)
    return band * TOGETHER + within % high, within // high


@triton.jit(do_not_specialize=["rows"])
def _wide(
    x, weight, out, rows, N, stride, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    TOGETHER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    down, right = place_of(tl.program_id(0), tl.cdiv(rows, BM), tl.cdiv(N, BN), TOGETHER)
    row, column = down * BM + tl.arange(0, BM), right * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    total = row_tile_product(x, row, row < rows, stride, weight, column % N, total, K, BK, PRECISION)
    known = (row < rows)[:, None] & (column < N)[None, :]
    tl.store(out + row[:, None] * N + column[None, :], total.to(out.dtype.element_ty), mask=known)
