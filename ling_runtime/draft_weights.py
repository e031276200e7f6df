"""The tensors of a DSpark draft checkpoint: names, shapes, precision.

Embedding and head belong to the target, so a stored copy of them is skipped. The surprise: published drafts come with
and without the confidence head. Static verification never asks for it and loads either; the modes that schedule by
confidence name what is missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file

from ling_runtime.config import ConfigError
from ling_runtime.weights import TensorSpec, listed, stored_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from ling_runtime.draft_config import DraftConfig

PREFIX = "model."
"""Some checkpoints put it before every name; here names have none."""

CONFIDENCE = "confidence_head."

_SKIPPED = ("lm_head.", "embed_tokens.", "rotary_emb.")


def draft_tensor_specs(config: DraftConfig, *, confidence: bool | None = None) -> dict[str, TensorSpec]:
    """Every tensor of the draft under its published name; `confidence` None: as the config enables it."""
    hidden = config.hidden_size
    specs = {
        "fc.weight": TensorSpec((hidden, hidden * len(config.target_layer_ids))),
        "hidden_norm.weight": TensorSpec((hidden,)),
        "norm.weight": TensorSpec((hidden,)),
    }
    for layer in range(config.num_hidden_layers):
        specs |= {f"layers.{layer}.{name}": spec for name, spec in _layer(config).items()}
    specs |= {f"markov_head.{name}": spec for name, spec in _markov(config).items()}
    if config.enable_confidence_head if confidence is None else confidence:
        specs[f"{CONFIDENCE}proj.weight"] = TensorSpec((1, config.confidence_width), fp32=True)
        specs[f"{CONFIDENCE}proj.bias"] = TensorSpec((1,), fp32=True)
    return specs


def _layer(config: DraftConfig) -> dict[str, TensorSpec]:
    hidden, width = config.hidden_size, config.intermediate_size
    attention = _mla(config) if config.attention_type == "mla" else _mha(config)
    return {
        "input_layernorm.weight": TensorSpec((hidden,)),
        "post_attention_layernorm.weight": TensorSpec((hidden,)),
        **{f"self_attn.{name}.weight": TensorSpec(shape) for name, shape in attention.items()},
        "mlp.gate_proj.weight": TensorSpec((width, hidden)),
        "mlp.up_proj.weight": TensorSpec((width, hidden)),
        "mlp.down_proj.weight": TensorSpec((hidden, width)),
    }


def _mha(config: DraftConfig) -> dict[str, tuple[int, ...]]:
    hidden, head = config.hidden_size, config.head_dim
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    return {
        "q_proj": (queries, hidden),
        "k_proj": (keys, hidden),
        "v_proj": (keys, hidden),
        "o_proj": (hidden, queries),
        "q_norm": (head,),
        "k_norm": (head,),
    }


def _mla(config: DraftConfig) -> dict[str, tuple[int, ...]]:
    hidden, heads, rank = config.hidden_size, config.num_attention_heads, config.kv_lora_rank
    return {
        "q_proj": (heads * (config.qk_nope_head_dim + config.qk_rope_head_dim), hidden),
        "kv_a_proj_with_mqa": (rank + config.qk_rope_head_dim, hidden),
        "kv_a_layernorm": (rank,),
        "kv_b_proj": (heads * (config.qk_nope_head_dim + config.v_head_dim), rank),
        "g_proj": (heads, hidden),
        "dense": (hidden, heads * config.v_head_dim),
    }


def _markov(config: DraftConfig) -> dict[str, TensorSpec]:
    hidden, rank, vocab = config.hidden_size, config.markov_rank, config.vocab_size
    specs = {"markov_w1.weight": TensorSpec((vocab, rank)), "markov_w2.weight": TensorSpec((vocab, rank))}
    if config.markov_head_type == "gated":
        specs |= {"gate_proj.weight": TensorSpec((rank, hidden + rank)), "gate_proj.bias": TensorSpec((rank,))}
    if config.markov_head_type == "rnn":
        joint = {"weight": (3 * rank, 2 * rank + hidden), "bias": (3 * rank,)}
        specs |= {f"joint_proj.{name}": TensorSpec(shape) for name, shape in joint.items()}
    return specs


def load_draft(path: str | Path, config: DraftConfig, *, confidence: bool = False) -> dict[str, Tensor]:
    """Read a draft's tensors; those of the confidence head are returned where they are stored, and required on demand.

    Raises ConfigError naming what is missing, unreadable, of a wrong shape, or stored by nobody's name, and what lacks
    the confidence head that `confidence` asks for.
    """
    if confidence and not config.enable_confidence_head:
        raise ConfigError(f"draft {path}: enable_confidence_head=false; verification by confidence needs the head")
    specs = draft_tensor_specs(config, confidence=True)
    tensors: dict[str, Tensor] = {}
    surplus: list[str] = []
    for stored, tensor in stored_tensors(Path(path)):
        name = stored.removeprefix(PREFIX)
        if name in specs:
            if tuple(tensor.shape) != specs[name].shape:
                raise ConfigError(f"draft {path}: {stored}: shape {tuple(tensor.shape)}, expected {specs[name].shape}")
            tensors[name] = tensor
        elif not name.startswith(_SKIPPED) and "rotary_emb." not in name:
            surplus.append(stored)
    missing = [name for name in specs if name not in tensors and not name.startswith(CONFIDENCE)]
    if missing or surplus:
        raise ConfigError(f"draft {path}: missing {listed(missing)}; not part of this draft {listed(surplus)}")
    lost = [name for name in specs if name not in tensors]
    if confidence and lost:
        raise ConfigError(f"draft {path}: missing {listed(lost)}; verification by confidence needs the head")
    return tensors if not lost else {n: t for n, t in tensors.items() if not n.startswith(CONFIDENCE)}


def save_draft(path: str | Path, tensors: Mapping[str, Tensor], config: DraftConfig) -> None:
    """Write config.json and model.safetensors under `path`: bf16, and fp32 where the table says so."""
    specs = draft_tensor_specs(config)
    assert tensors.keys() == specs.keys(), "exactly the draft's own tensors"
    Path(path).mkdir(parents=True, exist_ok=True)
    config.write(path)
    save_file({n: t.to(specs[n].dtype).contiguous() for n, t in tensors.items()}, Path(path) / "model.safetensors")


def initialise_draft(config: DraftConfig, seed: int = 0) -> dict[str, Tensor]:
    """Random weights of a sane scale, reproducible by `seed`: norms near one, biases near zero, matrices by fan-in."""
    generator = torch.Generator().manual_seed(seed)
    return {name: _random(name, spec, generator) for name, spec in draft_tensor_specs(config).items()}


def _random(name: str, spec: TensorSpec, generator: torch.Generator) -> Tensor:
    noise = torch.randn(spec.shape, generator=generator)
    if "norm" in name:
        return (1.0 + 0.1 * noise).to(spec.dtype)
    return (noise * (0.1 if name.endswith("bias") else spec.shape[-1] ** -0.5)).to(spec.dtype)
