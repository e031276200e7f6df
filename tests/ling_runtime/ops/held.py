"""What holds a kernel to its reference: operands drawn by their shapes, and how far results may differ.

To be imported after `tests.ling_runtime.interpreted`, which has to come before anything of Triton.
"""

from __future__ import annotations

import pytest
import torch

from ling_runtime.ops.router import RouterWeights
from tests.ling_runtime.interpreted import DEVICE

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
DTYPES = [torch.float32, torch.bfloat16]
ON_CPU_SLOW = pytest.mark.slow if not torch.cuda.is_available() else pytest.mark.gpu
"""The interpreter runs programs one after the other."""


def draw(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.Tensor:
    noise = torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))
    return (scale * noise).to(DEVICE, dtype)


def close(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> None:
    """In the norm of the whole."""
    assert got.shape == want.shape
    error, size = (got.double() - want.double()).norm(), want.double().norm()
    assert error <= TOLERANCE[dtype] * size, float(error / size)


def router_weights(experts: int = 16, hidden: int = 64) -> RouterWeights:
    bias = 0.1 * draw(experts)
    return RouterWeights(
        gate=draw(experts, hidden, scale=hidden**-0.5), bias=bias, groups=4, kept_groups=2, experts_per_row=3, scale=2.5
    )
