"""Rotary positions in the interleaved layout: pairs (2j, 2j+1) turn by position * theta^(-2j/d)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ling_runtime.ops.norm import widen

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.config import ModelConfig, YarnScaling


def rope_table(config: ModelConfig, length: int) -> Tensor:
    """cos and sin for positions 0..length-1 as [length, 2, d/2] in fp64, YaRN's blend and scale applied."""
    dims = config.qk_rope_head_dim
    exponents = torch.arange(0, dims, 2, dtype=torch.float64) / dims
    frequencies = config.rope_theta**-exponents
    scale = 1.0
    if config.rope_scaling is not None:
        frequencies = _yarn(frequencies, config.rope_theta, dims, config.rope_scaling)
        scale = config.rope_scaling.table_scale
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
    return torch.stack([angles.cos(), angles.sin()], dim=1) * scale


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Rotate x [..., d] by table rows [..., 2, d/2] (broadcast over heads where the table lacks them)."""
    pairs = widen(x).view(*x.shape[:-1], -1, 2)
    even, odd = pairs[..., 0], pairs[..., 1]
    cos, sin = table[..., 0, :], table[..., 1, :]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2).to(x.dtype)


def _yarn(frequencies: Tensor, theta: float, dims: int, yarn: YarnScaling) -> Tensor:
    """Fast dimensions keep their frequency, slow ones divide by the factor, a linear ramp joins them (YaRN)."""

    def dimension(rotations: float) -> float:
        turns = yarn.original_max_position_embeddings / (rotations * 2 * math.pi)
        return dims * math.log(turns) / (2 * math.log(theta))

    low = max(math.floor(dimension(yarn.beta_fast)), 0)
    high = min(math.ceil(dimension(yarn.beta_slow)), dims - 1)
    steps = torch.arange(dims // 2, dtype=torch.float64)
    ramp = ((steps - low) / max(high - low, 0.001)).clamp(0, 1)
    return frequencies * (1 - ramp) + frequencies / yarn.factor * ramp
