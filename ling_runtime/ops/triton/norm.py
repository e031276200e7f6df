"""RMS norms in Triton, one program per row: the residual is added, rounded, kept and normed in one pass.

The rounding points are the reference's; only the sum of squares runs in another order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from ling_runtime.ops.registry import variant
from ling_runtime.ops.triton.launch import enter, launch, leave

if TYPE_CHECKING:
    from torch import Tensor

ORDER = "the sum of squares is reduced in another order"


@variant("rms_norm", "triton", "rounding", ORDER)
def rms_norm_triton(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x * rsqrt(mean(x^2) + eps) * weight over the last dimension of [R, D]."""
    out = torch.empty_like(x)
    _norm[(x.shape[0],)](
        x, x, weight, out, out, eps, x.shape[1], triton.next_power_of_2(x.shape[1]), False, num_warps=8, **launch()
    )
    return out


@variant("add_rms_norm", "triton", "rounding", ORDER)
def add_rms_norm_triton(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(norm of the sum, the sum) of [R, D] rows."""
    out, total = torch.empty_like(x), torch.empty_like(x)
    _norm[(x.shape[0],)](
        x,
        residual,
        weight,
        out,
        total,
        eps,
        x.shape[1],
        triton.next_power_of_2(x.shape[1]),
        True,
        num_warps=8,
        **launch(),
    )
    return out, total


@triton.jit
def norm_row(value, weight, eps, D: tl.constexpr):
    """One fp32 row, zero past D, times rsqrt of its mean square and the weight."""
    return value * tl.rsqrt(tl.sum(value * value) / D + eps) * weight.to(tl.float32)


@triton.jit
def _norm(
    x, residual, weight, out, total, eps, D: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr, PDL: tl.constexpr
):
    place = tl.arange(0, BLOCK)
    inside = place < D
    factor = tl.load(weight + place, mask=inside, other=0.0)
    enter(PDL)
    at = tl.program_id(0) * D + place
    value = tl.load(x + at, mask=inside, other=0.0)
    if ADD:
        value = (value.to(tl.float32) + tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)).to(value.dtype)
        tl.store(total + at, value, mask=inside)
    normed = norm_row(value.to(tl.float32), factor, eps, D)
    tl.store(out + at, normed.to(out.dtype.element_ty), mask=inside)
    leave(PDL)
