"""Greedy choice without logits: each program multiplies a tile of the vocabulary and keeps its best token.

Logits are rounded to the row's precision before they are compared, as the reference's are, and ties go to the lowest
id; only the order of the sum over K differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch.utils.weak import WeakTensorKeyDictionary

from ling_runtime.config import TILE
from ling_runtime.ops.registry import variant
from ling_runtime.ops.triton.launch import enter, launch, leave
from ling_runtime.ops.triton.linear import INTERPRETED, linear_triton, precision, row_tile_product, tiles_for

if TYPE_CHECKING:
    from torch import Tensor

ORDER = "one program sums a row over K front to back"


@variant("lm_head", "triton", "rounding", ORDER)
def project_triton(x: Tensor, weight: Tensor) -> Tensor:
    """x [R, D] -> logits [R, V], fp32."""
    return linear_triton(x, weight).float()


@variant("greedy_head", "triton", "rounding", ORDER)
def greedy_triton(x: Tensor, weight: Tensor, form: str | None = None) -> Tensor:
    """x [n, D] -> the best token of each row [n]; `form` is how products are taken."""
    best, token = _tile_bests(x, weight, form or precision(x.dtype))
    count, blocks = best.shape
    out = torch.empty(count, dtype=torch.int64, device=x.device)
    _best_of_all[(count,)](best, token, out, blocks, triton.next_power_of_2(blocks), num_warps=4, **launch())
    return out


def _tile_bests(x: Tensor, weight: Tensor, form: str) -> tuple[Tensor, Tensor]:
    """Each row's best logit in each tile of the vocabulary [n, tiles], and its token."""
    count = x.shape[0]
    vocabulary, inner = weight.shape
    tiles = tiles_for(vocabulary, inner)
    blocks = triton.cdiv(vocabulary, tiles.columns)
    best = torch.empty(count, blocks, dtype=torch.float32, device=x.device)
    token = torch.empty(count, blocks, dtype=torch.int32, device=x.device)
    _best_of_tile[(blocks, triton.cdiv(count, TILE))](
        x, weight, best, token, count, vocabulary, blocks, inner, tiles.columns, tiles.depth, TILE,
        form, **launch(), num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return best, token


@variant("shard_head", "triton", "rounding", ORDER)
def greedy_of_shard_triton(x: Tensor, weight: Tensor, first: int) -> Tensor:
    """x [n, D] and rows of the vocabulary from `first` on -> [n, 2]: the best logit and its token, fp64."""
    best, token = _tile_bests(x, weight, precision(x.dtype))
    out = torch.empty(len(x), 2, dtype=torch.float64, device=x.device)
    blocks = best.shape[1]
    _best_with_value[(len(x),)](
        best, token, out, blocks, first, triton.next_power_of_2(blocks), num_warps=4, **launch()
    )
    return out


@variant("greedy_head", "triton_fp32", "rounding", f"{ORDER}, and logits are not rounded to the row's precision")
def greedy_triton_fp32(x: Tensor, weight: Tensor) -> Tensor:
    """The head in fp32, as it was before the post's change: twice the bytes, from a copy made once per weight."""
    if weight not in _WIDE:
        _WIDE[weight] = weight.float()
    return greedy_triton(x.float(), _WIDE[weight], "ieee" if INTERPRETED or x.dtype == torch.float32 else "tf32x3")


_WIDE = WeakTensorKeyDictionary()


@triton.jit(do_not_specialize=["rows"])
def _best_of_tile(
    x, weight, best, token, rows, V, blocks, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TM: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    row = tl.program_id(1) * TM + tl.arange(0, TM)
    column = block * BN + tl.arange(0, BN)
    enter(PDL)
    zero = tl.zeros((TM, BN), tl.float32)
    total = row_tile_product(x, row, row < rows, K, weight, column % V, zero, K, BK, PRECISION)
    total = total.to(x.dtype.element_ty).to(tl.float32)
    total = tl.where((column < V)[None, :], total, -float("inf"))
    tl.store(best + row * blocks + block, tl.max(total, axis=1), mask=row < rows)
    at = block * BN + tl.argmax(total, axis=1, tie_break_left=True)
    tl.store(token + row * blocks + block, at, mask=row < rows)
    leave(PDL)


@triton.jit
def _best_of_all(best, token, out, blocks, BLOCK: tl.constexpr, PDL: tl.constexpr):
    enter(PDL)
    row, place = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(best + row * blocks + place, mask=place < blocks, other=-float("inf"))
    at = tl.argmax(value, axis=0, tie_break_left=True)
    tl.store(out + row, tl.load(token + row * blocks + at).to(tl.int64))
    leave(PDL)


@triton.jit(do_not_specialize=["first"])
def _best_with_value(best, token, out, blocks, first, BLOCK: tl.constexpr, PDL: tl.constexpr):
    enter(PDL)
    row, place = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(best + row * blocks + place, mask=place < blocks, other=-float("inf"))
    at = tl.argmax(value, axis=0, tie_break_left=True)
    tl.store(out + row * 2, tl.max(value, axis=0).to(tl.float64))
    tl.store(out + row * 2 + 1, (tl.load(token + row * blocks + at) + first).to(tl.float64))
    leave(PDL)
