"""Starting values of the miniature's parameters, chosen so that training starts calm.

Matrices that write into the residual stream start at zero, so every layer begins as the identity; the decay bias
spreads the memory of KDA channels from a few tokens to a thousand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ling_runtime.tensor_table import tensor_specs

if TYPE_CHECKING:
    from ling_runtime.config import ModelConfig

_RESIDUAL_WRITERS = ("o_proj.weight", "dense.weight", "down_proj.weight")
_DECAY_BIAS = (-8.0, -1.0)


def initialise(config: ModelConfig, seed: int) -> dict[str, Tensor]:
    """fp32 parameters under Hugging Face names."""
    generator = torch.Generator().manual_seed(seed)
    return {name: _start(name, spec.shape, generator) for name, spec in tensor_specs(config).items()}


def _start(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if "norm" in name:
        return torch.ones(shape)
    if name.endswith((*_RESIDUAL_WRITERS, "A_log", "expert_bias")):
        return torch.zeros(shape)
    if name.endswith("dt_bias"):
        return torch.empty(shape).uniform_(*_DECAY_BIAS, generator=generator)
    if name.endswith("word_embeddings.weight"):
        return torch.randn(shape, generator=generator) * 0.5
    scale: float = shape[-1] ** -0.5
    return torch.randn(shape, generator=generator) * scale
