"""The whole Ling architecture as one differentiable function of [B, T] token ids.

It shares no line with the runtime, so each checks the other. Parameters are a plain dict under Hugging Face names. The
unit that a compiler gets is the residual block, norm and sum included: four functions serve all layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ling_runtime.training.layers import Params, kda, mla, mlp, moe, rms, under, wide

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ling_runtime.config import ModelConfig


def kda_block(x: Tensor, norm: Tensor, p: Params, config: ModelConfig) -> Tensor:
    return x + kda(rms(x, norm, config.rms_norm_eps), p, config)


def mla_block(x: Tensor, norm: Tensor, p: Params, config: ModelConfig, positions: Tensor) -> Tensor:
    return x + mla(rms(x, norm, config.rms_norm_eps), p, config, positions)


def mlp_block(x: Tensor, norm: Tensor, p: Params, config: ModelConfig, limit: Tensor) -> Tensor:
    return x + mlp(rms(x, norm, config.rms_norm_eps), p, limit)


def moe_block(
    x: Tensor, norm: Tensor, p: Params, config: ModelConfig, limit: Tensor, shared_limit: Tensor
) -> tuple[Tensor, Tensor]:
    out, load = moe(rms(x, norm, config.rms_norm_eps), p, config, limit, shared_limit)
    return x + out, load


@dataclass(frozen=True)
class Blocks:
    """The four residual blocks, replaceable by their compiled selves."""

    kda: Callable[..., Tensor] = kda_block
    mla: Callable[..., Tensor] = mla_block
    mlp: Callable[..., Tensor] = mlp_block
    moe: Callable[..., tuple[Tensor, Tensor]] = moe_block

    @classmethod
    def compiled(cls) -> Blocks:
        compile_one = partial(torch.compile, dynamic=False)
        return cls(compile_one(kda_block), compile_one(mla_block), compile_one(mlp_block), compile_one(moe_block))


PLAIN = Blocks()


def feed_forward(x: Tensor, p: Params, config: ModelConfig, layer: int, blocks: Blocks) -> tuple[Tensor, Tensor | None]:
    """The second block of a layer, p its parameters; a load where the layer routes."""
    norm, ffn = p["post_attention_layernorm.weight"], under(p, "mlp.")
    limit, shared_limit = (x.new_full((), value or torch.inf) for value in config.swiglu_limits(layer))
    if config.is_dense(layer):
        return blocks.mlp(x, norm, ffn, config, x.new_full((), torch.inf)), None
    return blocks.moe(x, norm, ffn, config, limit, shared_limit)


# ---------------------------------------------------------------------------------------------------------------------
# The model


class Trunk(NamedTuple):
    hidden: Tensor
    """After the final norm, [B, T, D]: the head's input and the draft layer's."""
    loads: dict[int, Tensor]
    """Expert loads by layer."""
    captured: list[Tensor]
    """The residual stream after each layer asked for, in order."""


def embed(params: Params, ids: Tensor) -> Tensor:
    return F.embedding(ids, params["model.word_embeddings.weight"])


def forward(
    params: Params, config: ModelConfig, ids: Tensor, blocks: Blocks = PLAIN, capture: Sequence[int] = ()
) -> Trunk:
    x = embed(params, ids)
    positions = torch.arange(ids.shape[1], device=ids.device)
    loads: dict[int, Tensor] = {}
    captured = []
    for layer in range(config.num_hidden_layers):
        p = under(params, f"model.layers.{layer}.")
        norm, attention = p["input_layernorm.weight"], under(p, "attention.")
        if config.is_mla(layer):
            x = blocks.mla(x, norm, attention, config, positions)
        else:
            x = blocks.kda(x, norm, attention, config)
        x, load = feed_forward(x, p, config, layer, blocks)
        if load is not None:
            loads[layer] = load
        if layer in capture:
            captured.append(x)
    return Trunk(rms(x, params["model.norm.weight"], config.rms_norm_eps), loads, captured)


def logits(params: Params, hidden: Tensor) -> Tensor:
    return wide(F.linear(hidden, params["lm_head.weight"]))
