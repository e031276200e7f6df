"""The floor of a decode step: the fewest bytes it can move, over what the card's memory was seen to do.

Everything is counted once. Routed experts count as often as rows choose different ones, which only a run can say;
staged rows and small activations stay in the cache and count nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ling_runtime.draft_table import draft_tensor_specs
from ling_runtime.tensor_table import nextn_specs, tensor_specs

if TYPE_CHECKING:
    from ling_runtime.config import ModelConfig
    from ling_runtime.draft_config import DraftConfig


def step_bytes(config: ModelConfig, *, rows: int, context: int, distinct: float) -> float:
    """Bytes one verify step of one request reads: weights, state and cache.

    The router's gate is read in fp32, as the reference multiplies it.
    """
    return weight_bytes(config, rows, distinct) + state_bytes(config) + cache_bytes(config, context)


def nextn_bytes(config: ModelConfig, *, steps: int, context: int, distinct: float) -> float:
    """Bytes of a whole NEXTN step: `steps` - 1 drafts of one row, verification and extension of `steps` + 1.

    `distinct` experts were counted in verification; extension is taken to choose as many, a draft those of one row.
    """
    verify = step_bytes(config, rows=steps + 1, context=context, distinct=distinct)
    passes = [float(config.num_experts_per_tok)] * (steps - 1) + [distinct]
    return verify + sum(draft_bytes(config, context, experts) for experts in passes)


def draft_bytes(config: ModelConfig, context: int, distinct: float) -> float:
    """Bytes of one pass of the NEXTN layer with the head on one row."""
    expert = 3 * config.hidden_size * config.moe_intermediate_size * 2
    layer = sum(
        spec.numel * (4 if spec.fp32 or name.endswith("gate.weight") else 2)
        for name, spec in nextn_specs(config).items()
        if ".experts." not in name
    )
    head = config.vocab_size * config.hidden_size * 2
    return layer + head + distinct * expert + context * config.latent_width * 2.0


def block_bytes(
    target: ModelConfig, draft: DraftConfig, *, drafts: int, context: int, distinct: float
) -> dict[str, float]:
    """Bytes that each part of a DSPARK step reads, and the whole; the chain's factors count once, they stay cached."""
    specs = draft_tensor_specs(draft, confidence=False)
    context_width = 2 * draft.num_key_value_heads * draft.head_dim * draft.num_hidden_layers
    fuse = specs["fc.weight"].numel
    own = sum(spec.numel for name, spec in specs.items() if not name.startswith(("fc.", "markov_head.markov_w1")))
    parts = {
        "draft": 2.0 * (own + target.vocab_size * target.hidden_size + context * context_width),
        "verify": step_bytes(target, rows=drafts + 1, context=context, distinct=distinct),
        "inject": 2.0 * (fuse + context_width * draft.hidden_size),
    }
    return parts | {"dspark": sum(parts.values())}


def weight_bytes(config: ModelConfig, rows: int, distinct: float) -> float:
    expert = 3 * config.hidden_size * config.moe_intermediate_size * 2
    total = rows * config.hidden_size * 2.0 + config.num_moe_layers * distinct * expert
    for name, spec in tensor_specs(config, nextn=False).items():
        if ".experts." in name or "word_embeddings" in name:
            continue
        wide = spec.fp32 or name.endswith("gate.weight")
        total += spec.numel * (4 if wide else 2)
    return total


def state_bytes(config: ModelConfig) -> float:
    """Recurrent state of one request, fp32, read once; the open chunk's rows are half full on average."""
    heads, width = config.num_attention_heads, config.head_dim
    return len(config.layers(mla=False)) * heads * (width * width + 8 * (4 * width + 1)) * 4.0


def cache_bytes(config: ModelConfig, context: int) -> float:
    return len(config.layers(mla=True)) * context * config.latent_width * 2.0


def copy_bandwidth(size: int = 2 << 30) -> float:
    """Bytes per second, read plus written, of a large copy on the device: the ceiling everything is held against."""
    source = torch.empty(size, dtype=torch.uint8, device="cuda").random_(0, 255)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(8):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        target.copy_(source)
        end.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(end))
    return 2 * size / best * 1e3
