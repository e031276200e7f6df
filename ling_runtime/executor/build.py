"""From a checkpoint directory and run settings to an executor ready for its first request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from ling_runtime.config import ConfigError, ModelConfig
from ling_runtime.executor.step import StepExecutor
from ling_runtime.memory.caches import Caches
from ling_runtime.memory.latent import pages_for
from ling_runtime.model.ling import Ling
from ling_runtime.model.nextn import Nextn
from ling_runtime.ops.registry import Kernels
from ling_runtime.speculation.nextn import NextnProposer
from ling_runtime.weights import load, tensor_specs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


@dataclass(frozen=True, kw_only=True)
class ExecutorSettings:
    """What shapes an executor besides the checkpoint. `num_steps` 0 is no speculation; `context_length` None the
    model's.
    """

    num_steps: int = 0
    max_requests: int = 8
    context_length: int | None = None
    chunk: int = 512
    max_total_tokens: int | None = None
    dtype: str = "float32"
    device: str = "cpu"
    kernels: Mapping[str, str] = field(default_factory=dict)


def load_executor(path: str, settings: ExecutorSettings) -> StepExecutor:
    """Read the checkpoint at `path`. Raises ConfigError for a path, a flag or a tensor that does not fit."""
    config = ModelConfig.from_pretrained(path)
    return build_executor(config, load(path, tensor_specs(config)), settings)


def build_executor(config: ModelConfig, tensors: Mapping[str, Tensor], settings: ExecutorSettings) -> StepExecutor:
    context = settings.context_length or config.max_position_embeddings
    if context > config.max_position_embeddings:
        raise ConfigError(f"context_length={context}: allowed up to the model's {config.max_position_embeddings}")
    if settings.dtype not in DTYPES:
        raise ConfigError(f"dtype={settings.dtype}: allowed: {', '.join(DTYPES)}")
    if settings.num_steps and not config.num_nextn_predict_layers:
        raise ConfigError("speculative_algorithm=NEXTN: the checkpoint has num_nextn_predict_layers=0")
    dtype, device = DTYPES[settings.dtype], torch.device(settings.device)
    longest = context + settings.num_steps + 1
    total = settings.max_total_tokens or settings.max_requests * longest
    checkpoint_kernels = {"router": "bf16"} if config.router_dtype == "bf16" else {}
    kernels = Kernels(checkpoint_kernels | dict(settings.kernels))
    model = Ling(config, tensors, kernels, positions=longest, dtype=dtype, device=device)
    pages = max(pages_for(total), pages_for(longest))
    caches = Caches(config, max_requests=settings.max_requests, pages=pages, dtype=dtype, device=device)
    proposer = None
    if settings.num_steps:
        draft = Nextn(model, tensors, index=len(config.layers(mla=True)))
        proposer = NextnProposer(model, draft, caches, steps=settings.num_steps, slots=settings.max_requests + 1)
    return StepExecutor(model, caches, proposer, max_context=context, chunk=settings.chunk)
