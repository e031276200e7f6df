"""RMS norms: statistics in fp32, the result in the row's own precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ling_runtime.ops.registry import variant

if TYPE_CHECKING:
    from torch import Tensor


def widen(x: Tensor) -> Tensor:
    """fp32, or fp64 where the caller computes in it: the precision of everything that must not round early."""
    return x if x.dtype == torch.float64 else x.float()


@variant("rms_norm")
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x * rsqrt(mean(x^2) + eps) * weight over the last dimension."""
    return normalise(widen(x), widen(weight), eps).to(x.dtype)


def normalise(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm in the precision given (the library's own call is three times slower on a few rows)."""
    return (x * x.square().mean(-1, keepdim=True).add_(eps).rsqrt_()).mul_(weight)


@variant("add_rms_norm")
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(norm of the sum, the sum): the residual stream stays in the row's precision."""
    total = residual + x
    return rms_norm(total, weight, eps), total


def l2_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / sqrt(sum(x^2) + eps): eps under the root, a sum and not a mean (fact of the architecture)."""
    return x * x.square().sum(-1, keepdim=True).add_(eps).rsqrt_()
