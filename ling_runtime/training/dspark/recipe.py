"""Everything on the draft's side that a run is determined by, and the named variations of it.

A preset differs from the plain recipe in one thing, so two runs of one seed tell what that thing is worth.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ling_runtime.draft_config import DraftConfig
from ling_runtime.training.dspark.losses import LossWeights, default_decay

if TYPE_CHECKING:
    from ling_runtime.config import ModelConfig
    from ling_runtime.training.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class Recipe:
    draft: DraftConfig
    schedule: Schedule
    losses: LossWeights
    anchors: int = 64
    """Blocks trained on in each sequence."""
    seed: int = 0
    """Of the first weights and of the anchors."""
    clip: float = 1.0


@dataclass(frozen=True)
class Preset:
    """What differs from the plain recipe: keys of the draft's config and of the loss weights."""

    draft: dict[str, Any] = field(default_factory=dict)
    losses: dict[str, Any] = field(default_factory=dict)


LENGTH_WEIGHT = 0.5

PRESETS: dict[str, Preset] = {
    "plain": Preset(),
    "attention-mla": Preset({"attention_type": "mla", "rope_interleave": True}),
    "rope-interleaved": Preset({"rope_interleave": True}),
    "rope-partial": Preset({"partial_rotary_factor": 0.5}),
    "head-gated": Preset({"markov_head_type": "gated"}),
    "head-rnn": Preset({"markov_head_type": "rnn"}),
    "block-causal": Preset({"is_causal": True}),
    "length-mean": Preset(losses={"length": LENGTH_WEIGHT, "length_form": "mean"}),
    "length-path": Preset(losses={"length": LENGTH_WEIGHT, "length_form": "path"}),
    "length-greedy": Preset(losses={"length": LENGTH_WEIGHT, "length_form": "greedy"}),
}


def recipe(
    preset: str, target: ModelConfig, block_size: int, schedule: Schedule, seed: int = 0, anchors: int = 64
) -> Recipe:
    """The plain recipe for drafts of `block_size` for `target`, varied as PRESETS says."""
    variation = PRESETS[preset]
    weights = LossWeights(decay=default_decay(block_size))
    return Recipe(
        draft=replace(plain_draft(target, block_size), **variation.draft),
        schedule=schedule,
        losses=replace(weights, **variation.losses),
        anchors=anchors,
        seed=seed,
    )


def plain_draft(target: ModelConfig, block_size: int, layers: int = 3, captured: int = 4) -> DraftConfig:
    """A draft as wide as the target, with its head count and, for attention_type mla, its latent widths."""
    return DraftConfig(
        hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=target.num_attention_heads,
        num_key_value_heads=target.num_attention_heads,
        head_dim=target.head_dim,
        rms_norm_eps=target.rms_norm_eps,
        rope_theta=target.rope_theta,
        vocab_size=target.vocab_size,
        max_position_embeddings=target.max_position_embeddings,
        block_size=block_size,
        mask_token_id=target.vocab_size - 4,
        target_layer_ids=spread(target.num_hidden_layers, captured),
        markov_rank=target.hidden_size // 2,
        kv_lora_rank=target.kv_lora_rank,
        qk_nope_head_dim=target.qk_nope_head_dim,
        qk_rope_head_dim=target.qk_rope_head_dim,
        v_head_dim=target.v_head_dim,
    )


def spread(layers: int, count: int) -> tuple[int, ...]:
    """`count` layers from the second to the one before the last, evenly: 4 of 12 are 1, 4, 7, 10."""
    return tuple(1 + round(k * (layers - 3) / (count - 1)) for k in range(count))
