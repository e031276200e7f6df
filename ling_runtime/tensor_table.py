"""The tensors of a Ling checkpoint: names, shapes, precision and how tensor parallelism splits each of them.

One table serves loading, saving, sharding and counting, and the last without torch. The surprise: `q_proj` and `g_proj`
name different shapes in KDA and MLA layers, so the table is built per layer kind and never by suffix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from ling_runtime.config import ModelConfig

Split = Literal["replicate", "column", "row"]


@dataclass(frozen=True)
class TensorSpec:
    """Shape [out, in] (or 1-D), split over tensor-parallel ranks, and whether the file keeps fp32."""

    shape: tuple[int, ...]
    split: Split = "replicate"
    fp32: bool = False

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        import torch  # noqa: PLC0415 - who only counts needs none

        return torch.float32 if self.fp32 else torch.bfloat16

    @property
    def dim(self) -> int | None:
        """The dimension that ranks divide; None where every rank holds the whole tensor."""
        return {"replicate": None, "column": 0, "row": 1}[self.split]


def tensor_specs(config: ModelConfig, *, nextn: bool = True) -> dict[str, TensorSpec]:
    """Every tensor of the checkpoint under its Hugging Face name, with the NEXTN layer's if there is one."""
    vocab = TensorSpec((config.vocab_size, config.hidden_size), "column")
    specs = {"model.word_embeddings.weight": vocab}
    for layer in range(config.num_hidden_layers):
        specs.update(_layer(config, layer))
    specs["model.norm.weight"] = TensorSpec((config.hidden_size,))
    specs["lm_head.weight"] = vocab
    if nextn and config.num_nextn_predict_layers:
        specs.update(nextn_specs(config))
    return specs


def nextn_specs(config: ModelConfig) -> dict[str, TensorSpec]:
    """The NEXTN layer, stored as one layer after the last; it shares embedding and head with the target."""
    hidden, prefix = config.hidden_size, f"model.layers.{config.num_hidden_layers}."
    specs = {f"{prefix}{name}.weight": TensorSpec((hidden,)) for name in ("enorm", "hnorm", "final_layernorm")}
    specs[f"{prefix}eh_proj.weight"] = TensorSpec((hidden, 2 * hidden))
    return specs | _layer(config, config.num_hidden_layers)


def _layer(config: ModelConfig, layer: int) -> dict[str, TensorSpec]:
    hidden = config.hidden_size
    attention = _mla(config) if config.is_mla(layer) else _kda(config)
    mlp = _swiglu(hidden, config.intermediate_size) if config.is_dense(layer) else _moe(config)
    return {
        f"model.layers.{layer}.input_layernorm.weight": TensorSpec((hidden,)),
        f"model.layers.{layer}.post_attention_layernorm.weight": TensorSpec((hidden,)),
        **{f"model.layers.{layer}.attention.{name}": spec for name, spec in attention.items()},
        **{f"model.layers.{layer}.mlp.{name}": spec for name, spec in mlp.items()},
    }


def _kda(config: ModelConfig) -> dict[str, TensorSpec]:
    hidden, width, heads = config.hidden_size, config.kda_width, config.num_attention_heads
    conv = TensorSpec((width, 1, config.short_conv_kernel_size), "column", fp32=True)
    return {
        **{f"{x}_proj.weight": TensorSpec((width, hidden), "column") for x in "qkvfg"},
        **{f"{x}_conv1d.weight": conv for x in "qkv"},
        "b_proj.weight": TensorSpec((heads, hidden), "column"),
        "A_log": TensorSpec((heads,), "column", fp32=True),
        "dt_bias": TensorSpec((width,), "column", fp32=True),
        "o_norm.weight": TensorSpec((config.head_dim,)),
        "o_proj.weight": TensorSpec((hidden, width), "row"),
    }


def _mla(config: ModelConfig) -> dict[str, TensorSpec]:
    hidden, heads, rank = config.hidden_size, config.num_attention_heads, config.kv_lora_rank
    return {
        "q_proj.weight": TensorSpec((heads * config.qk_head_dim, hidden), "column"),
        "kv_a_proj_with_mqa.weight": TensorSpec((config.latent_width, hidden)),
        "kv_a_layernorm.weight": TensorSpec((rank,)),
        "kv_b_proj.weight": TensorSpec((heads * (config.qk_nope_head_dim + config.v_head_dim), rank), "column"),
        "g_proj.weight": TensorSpec((heads, hidden), "column"),
        "dense.weight": TensorSpec((hidden, heads * config.v_head_dim), "row"),
    }


def _moe(config: ModelConfig) -> dict[str, TensorSpec]:
    hidden = config.hidden_size
    specs = {
        "gate.weight": TensorSpec((config.num_experts, hidden)),
        "gate.expert_bias": TensorSpec((config.num_experts,), fp32=True),
    }
    expert = _swiglu(hidden, config.moe_intermediate_size)
    for index in range(config.num_experts):
        specs |= {f"experts.{index}.{name}": spec for name, spec in expert.items()}
    if config.num_shared_experts:
        shared = _swiglu(hidden, config.moe_shared_expert_intermediate_size * config.num_shared_experts)
        specs |= {f"shared_experts.{name}": spec for name, spec in shared.items()}
    return specs


def _swiglu(hidden: int, width: int) -> dict[str, TensorSpec]:
    column, row = TensorSpec((width, hidden), "column"), TensorSpec((hidden, width), "row")
    return {"gate_proj.weight": column, "up_proj.weight": column, "down_proj.weight": row}


def held_bytes(specs: Mapping[str, TensorSpec], *, wide: bool, ranks: int = 1) -> int:
    """Bytes of these tensors in the memory of one of `ranks`, in fp32 (`wide`) or in the file's precision."""
    return sum(
        spec.numel // (1 if spec.dim is None else ranks) * (4 if wide or spec.fp32 else 2) for spec in specs.values()
    )
