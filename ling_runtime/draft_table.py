"""The tensors of a DSpark draft: names, shapes, precision.

The surprise: embedding and head are not among them, for they are the target's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ling_runtime.tensor_table import TensorSpec

if TYPE_CHECKING:
    from ling_runtime.draft_config import DraftConfig

CONFIDENCE = "confidence_head."


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
