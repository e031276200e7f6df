"""From a checkpoint directory and run settings to an executor ready for its first request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from ling_runtime.config import ConfigError, ModelConfig
from ling_runtime.dummy import DummyTensors
from ling_runtime.executor.draft import DraftSettings, read_draft
from ling_runtime.executor.step import StepExecutor
from ling_runtime.memory.caches import Caches
from ling_runtime.memory.latent import pages_for
from ling_runtime.model.ling import Ling
from ling_runtime.model.nextn import Nextn
from ling_runtime.ops.registry import Kernels
from ling_runtime.parallel.communicator import ALONE
from ling_runtime.speculation.dspark.proposer import DsparkProposer
from ling_runtime.speculation.dspark.schedule import load_schedule
from ling_runtime.speculation.nextn import NextnProposer
from ling_runtime.speculation.verification import RULES
from ling_runtime.tensor_table import tensor_specs
from ling_runtime.weights import load

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from ling_runtime.executor.graph_settings import GraphSettings
    from ling_runtime.parallel.communicator import Communicator
    from ling_runtime.speculation.interface import Proposer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


@dataclass(frozen=True, kw_only=True)
class ExecutorSettings:
    """What shapes an executor besides the checkpoint. `num_steps` 0 and no `draft` is no speculation; `context_length`
    None the model's; `graphs` replays greedy steps, on a CUDA device, and None runs all eagerly. `load_format` "dummy"
    draws the weights.
    """

    num_steps: int = 0
    draft: DraftSettings | None = None
    max_requests: int = 8
    context_length: int | None = None
    chunk: int = 512
    max_total_tokens: int | None = None
    dtype: str = "float32"
    device: str = "cpu"
    kernels: Mapping[str, str] = field(default_factory=dict)
    graphs: GraphSettings | None = None
    load_format: str = "auto"


def load_executor(path: str, settings: ExecutorSettings, ranks: Communicator = ALONE) -> StepExecutor:
    """Read this rank's share of the checkpoint at `path`. ConfigError for a path, a flag or a tensor that does not fit.

    Executors of several ranks must be given the same calls in the same order.
    """
    whole = ModelConfig.from_pretrained(path)
    config = whole.of_rank(ranks.size)
    tensors: Mapping[str, Tensor]
    if settings.load_format == "dummy":
        if settings.draft and settings.draft.schedule.mode != "static":
            mode = settings.draft.schedule.mode
            raise ConfigError(f"load_format=dummy: drawn confidences plan nothing; verify mode {mode}, allowed: static")
        tensors = DummyTensors(whole, seed=0, device=torch.device(settings.device), rank=ranks.rank, size=ranks.size)
    else:
        tensors = load(path, tensor_specs(whole), rank=ranks.rank, size=ranks.size)
    executor = build_executor(config, tensors, settings, ranks)
    if draft := settings.draft:
        executor.schedule = load_schedule(
            path,
            draft.path,
            executor.window - 1,
            draft.schedule,
            device=settings.device,
            dtype=settings.dtype,
            kernels=settings.kernels,
        )
    return executor


def build_executor(
    config: ModelConfig, tensors: Mapping[str, Tensor], settings: ExecutorSettings, ranks: Communicator = ALONE
) -> StepExecutor:
    """As `load_executor`, from the rank's tensors. Nothing here knows the target's files, so every row is verified."""
    context = settings.context_length or config.max_position_embeddings
    if context > config.max_position_embeddings:
        raise ConfigError(f"context_length={context}: allowed up to the model's {config.max_position_embeddings}")
    if settings.dtype not in DTYPES:
        raise ConfigError(f"dtype={settings.dtype}: allowed: {', '.join(DTYPES)}")
    if settings.num_steps and not config.num_nextn_predict_layers:
        raise ConfigError("speculative_algorithm=NEXTN: the checkpoint has num_nextn_predict_layers=0")
    if ranks.size > 1 and settings.draft:
        raise ConfigError(f"tp_size={ranks.size}: not under speculative_algorithm DSPARK; allowed: NEXTN or none")
    dtype, device = DTYPES[settings.dtype], torch.device(settings.device)
    drawn_on = device if settings.load_format == "dummy" else None
    draft = read_draft(settings.draft, config, context, drawn_on=drawn_on) if settings.draft else None
    window = 1 + (draft.drafts if draft else settings.num_steps)
    longest = context + window * (2 if settings.graphs and settings.graphs.overlap else 1)
    total = settings.max_total_tokens or settings.max_requests * longest
    checkpoint_kernels = {"router": "bf16"} if config.router_dtype == "bf16" else {}
    kernels = Kernels(checkpoint_kernels | dict(settings.kernels))
    model = Ling(config, tensors, kernels, positions=longest, dtype=dtype, device=device, ranks=ranks)
    pages = max(pages_for(total), pages_for(longest))
    caches = Caches(config, max_requests=settings.max_requests, pages=pages, dtype=dtype, device=device)
    proposer: Proposer | None = None
    if draft:
        proposer = draft.proposer(model, caches, positions=longest)
    elif settings.num_steps:
        layer = Nextn(model, tensors, index=len(config.layers(mla=True)))
        proposer = NextnProposer(model, layer, caches, steps=settings.num_steps, slots=settings.max_requests + 1)
    rule = RULES[settings.draft.acceptance if settings.draft else "classic"]
    if settings.graphs:
        if draft and draft.config.attention_type != "mha":
            raise ConfigError(f"graphs: attention_type={draft.config.attention_type} of the draft; allowed: mha")
        if settings.draft and settings.draft.schedule.mode == "cap-accept":
            raise ConfigError("graphs: verify mode cap-accept; allowed: static, compact")
        from ling_runtime.executor.graph_step import GraphExecutor  # noqa: PLC0415 - needs Triton, which few machines have

        assert proposer is None or isinstance(proposer, NextnProposer | DsparkProposer)
        return GraphExecutor(
            model, caches, proposer, max_context=context, chunk=settings.chunk, rule=rule, settings=settings.graphs
        )
    return StepExecutor(model, caches, proposer, max_context=context, chunk=settings.chunk, rule=rule)
