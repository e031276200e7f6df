"""Matrix products of 16-row tiles in Triton, for weights that come cold from memory.

With few rows the product is a read of the weights and nothing else, so the tile is chosen for bytes in flight. The
surprise is what makes rows invariant: every row is summed over K front to back by one program, in 16-row tensor-core
tiles, whatever the column tile, the pipeline depth or the number of rows; only the library's order differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from ling_runtime.config import TILE
from ling_runtime.ops.registry import variant
from ling_runtime.ops.triton.launch import enter, launch, leave

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Tiles:
    """Columns and depth of a program's tile, warps, and stages of its load pipeline."""

    columns: int
    depth: int
    warps: int
    stages: int


def tiles_for(outputs: int, inner: int) -> Tiles:
    """Narrow tiles and a deep pipeline where programs are few; measured on one H200 (docs/gpu.md)."""
    if outputs >= WIDE_OUTPUTS:
        return Tiles(64, 128, 4, 4)
    return Tiles(16, min(64, max(16, triton.next_power_of_2(inner))), 2, 8)


WIDE_OUTPUTS = 16384
"""Outputs from which tiles are wide."""
INTERPRETED: bool = triton.knobs.runtime.interpret


def precision(dtype: torch.dtype) -> str:
    """fp32 products are IEEE; narrower inputs have one product anyway (the interpreter knows no bf16 product)."""
    return "ieee" if dtype == torch.float32 or INTERPRETED else "tf32"


@variant("linear", "triton", "rounding", "one program sums a row over K front to back; the library has its own order")
def linear_triton(x: Tensor, weight: Tensor, tiles: Tiles | None = None) -> Tensor:
    """x [R, K] @ weight [N, K]^T -> [R, N], for any R."""
    rows, inner = x.shape
    outputs = weight.shape[0]
    tiles = tiles or tiles_for(outputs, inner)
    out = x.new_empty(rows, outputs)
    _linear[(triton.cdiv(outputs, tiles.columns), triton.cdiv(rows, TILE))](
        x, weight, out, rows, outputs, x.stride(0), inner, tiles.columns, tiles.depth, TILE, precision(x.dtype),
        **launch(), num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return out


@triton.jit
def product(a, b, total, PRECISION: tl.constexpr):
    """total + a @ b in fp32; "parts": b is fp32 and a counts in bf16, one exact product for each third of b's bits."""
    if PRECISION == "parts":
        a, high = a.to(tl.bfloat16), b.to(tl.bfloat16)
        rest = b - high.to(tl.float32)
        middle = rest.to(tl.bfloat16)
        low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
        total = tl.dot(a, low, total)
        total = tl.dot(a, middle, total)
        total = tl.dot(a, high, total)
    else:
        if PRECISION == "ieee":
            a, b = a.to(tl.float32), b.to(tl.float32)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    return total


@triton.jit
def row_tile_product(
    x, rows, live, stride, weight, columns, total, K: tl.constexpr, BK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """`total` [TM, BN] plus x[rows] with weight[columns] (both K contiguous), summed over K front to back.

    Rows that are not `live` are zero and are not read: a tile has 16 rows whatever the window has.
    """
    place = tl.arange(0, BK)
    for k in range(0, K, BK):
        if K % BK == 0:
            a = tl.load(x + rows[:, None] * stride + (k + place)[None, :], mask=live[:, None], other=0.0)
            b = tl.load(weight + columns[None, :] * K + (k + place)[:, None])
        else:
            inside = k + place < K
            known = live[:, None] & inside[None, :]
            a = tl.load(x + rows[:, None] * stride + (k + place)[None, :], mask=known, other=0.0)
            b = tl.load(weight + columns[None, :] * K + (k + place)[:, None], mask=inside[:, None], other=0.0)
        total = product(a, b, total, PRECISION)
    return total


@triton.jit(do_not_specialize=["rows"])
def _linear(
    x, weight, out, rows, N, stride, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TM: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1) * TM + tl.arange(0, TM)
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    total = tl.zeros((TM, BN), tl.float32)
    enter(PDL)
    total = row_tile_product(x, row, row < rows, stride, weight, column % N, total, K, BK, PRECISION)
    known = (row < rows)[:, None] & (column < N)[None, :]
    tl.store(out + row[:, None] * N + column[None, :], total.to(out.dtype.element_ty), mask=known)
    leave(PDL)
