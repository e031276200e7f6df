"""What a DSpark draft is: its config.json as a frozen value, refused by name where this runtime would differ.

Published drafts spell the same key in several ways and places: `block_size` or `dspark_block_size`, at the top level or
in a nested `dspark_config` / `dflash_config`. All spellings are read; two that disagree are an error. The surprise: a
draft says of itself only half of what it needs, for embedding and head are its target's, so `check_target` decides
whether the two fit.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ling_runtime.config import ConfigError, read_config, require

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ling_runtime.config import ModelConfig

log = logging.getLogger(__name__)

Attention = Literal["mha", "mla"]
MarkovHead = Literal["vanilla", "gated", "rnn"]


@dataclass(frozen=True, kw_only=True)
class DraftConfig:
    """A `LingDSparkModel` or `Qwen3DSparkModel`; the four widths at the end belong to attention_type mla."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    vocab_size: int
    max_position_embeddings: int
    block_size: int
    """gamma: drafts of one block; the target verifies one row more."""
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    """Layers of the target, counted from 0, whose residual stream is captured after them."""
    markov_rank: int
    markov_head_type: MarkovHead = "vanilla"
    enable_confidence_head: bool = True
    confidence_head_with_markov: bool = True
    is_causal: bool = False
    """False: the rows of a block see each other in both directions."""
    sample_from_anchor: bool = True
    """False: the block has one row more, and the anchor's own prediction is dropped."""
    attention_type: Attention = "mha"
    rope_interleave: bool = False
    """Pairs (2j, 2j + 1) turn together; else (j, j + half)."""
    partial_rotary_factor: float = 1.0
    """The leading share of a head that turns (attention_type mha)."""
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0

    def __post_init__(self) -> None:
        positive = _SIZES + (_MLA if self.attention_type == "mla" else ())
        for key in positive:
            if type(getattr(self, key)) is not int or getattr(self, key) < 1:
                raise ConfigError(f"{key}={getattr(self, key)!r}: must be an integer of at least 1")
        for key in _POSITIVE:
            if type(getattr(self, key)) not in (int, float) or not 0 < getattr(self, key) < math.inf:
                raise ConfigError(f"{key}={getattr(self, key)!r}: must be a positive number")
        for key in _SWITCHES:
            require(key, getattr(self, key), (False, True))
        require("markov_head_type", self.markov_head_type, ("vanilla", "gated", "rnn"))
        require("attention_type", self.attention_type, ("mha", "mla"))
        if self.num_attention_heads % self.num_key_value_heads:
            raise ConfigError(
                f"num_key_value_heads={self.num_key_value_heads}: must divide num_attention_heads="
                f"{self.num_attention_heads}"
            )
        ids = self.target_layer_ids
        if not ids or any(type(i) is not int for i in ids) or list(ids) != sorted(set(ids)):
            raise ConfigError(f"target_layer_ids={list(ids)}: must be one or more integers, strictly increasing")
        if not self.partial_rotary_factor <= 1.0 or self.rotary_width % 2 or not self.rotary_width:
            raise ConfigError(
                f"partial_rotary_factor={self.partial_rotary_factor}: must leave an even number of turning dimensions, "
                f"2..{self.head_dim}, not {self.rotary_width}"
            )

    @classmethod
    def from_pretrained(cls, path: str | Path) -> DraftConfig:
        """Read `path`/config.json; ConfigError when it is missing, malformed or holds a value that is not supported."""
        return cls.from_dict(read_config(path, "draft model path"))

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> DraftConfig:
        """Convert a Hugging Face dictionary; unsupported values raise, keys nobody knows are logged."""
        values = _flat(raw)
        for key, allowed in _SUPPORTED.items():
            if key in values:
                require(key, values[key], allowed)
        if any(kind != "full_attention" for kind in values.get("layer_types") or ()):
            raise ConfigError(f"layer_types={values['layer_types']!r}: allowed: absent, or full_attention throughout")
        values["rope_theta"] = _rope_theta(values)
        own = {f.name: f for f in dataclasses.fields(cls)}
        missing = [name for name, f in own.items() if f.default is dataclasses.MISSING and values.get(name) is None]
        if missing:
            raise ConfigError(f"the draft's config.json lacks {', '.join(missing)}")
        unknown = sorted(set(values) - set(own) - set(_SUPPORTED) - _WITHOUT_EFFECT)
        if unknown:
            log.warning("keys of the draft's config.json without a meaning here, ignored: %s", ", ".join(unknown))
        known = {name: values[name] for name in own if values.get(name) is not None}
        ids = values["target_layer_ids"]
        if not isinstance(ids, list):
            raise ConfigError(f"target_layer_ids={ids!r}: must be a list of layers")
        return cls(**known | {"target_layer_ids": tuple(ids)})

    def to_json(self) -> dict[str, Any]:
        """What `from_dict` reads back as this value, under the published names."""
        return {"architectures": ["LingDSparkModel"]} | dataclasses.asdict(self) | {"hidden_act": "silu"}

    def write(self, path: str | Path) -> None:
        (Path(path) / "config.json").write_text(json.dumps(self.to_json(), indent=2) + "\n")

    @property
    def rotary_width(self) -> int:
        """Dimensions of a head that turn with position."""
        return (
            self.qk_rope_head_dim if self.attention_type == "mla" else int(self.head_dim * self.partial_rotary_factor)
        )

    @property
    def block_rows(self) -> int:
        """Rows of one draft forward at the trained block size."""
        return self.block_size + (not self.sample_from_anchor)

    @property
    def confidence_width(self) -> int:
        return self.hidden_size + (self.markov_rank if self.confidence_head_with_markov else 0)

    def check_target(self, target: ModelConfig) -> None:
        """ConfigError unless this draft can read the target's rows and share its embedding and head.

        The target's last layer cannot be captured: checkpoints disagree on whether its entry is the residual stream or
        the row after the final norm.
        """
        for key in ("hidden_size", "vocab_size"):
            if getattr(self, key) != getattr(target, key):
                raise ConfigError(
                    f"draft {key}={getattr(self, key)}: the target's embedding and head are shared, which has "
                    f"{getattr(target, key)}"
                )
        last = target.num_hidden_layers - 2
        if self.target_layer_ids[0] < 0 or self.target_layer_ids[-1] > last:
            raise ConfigError(f"target_layer_ids={list(self.target_layer_ids)}: allowed for this target: 0..{last}")
        if type(self.mask_token_id) is not int or not 0 <= self.mask_token_id < target.vocab_size:
            raise ConfigError(f"mask_token_id={self.mask_token_id!r}: allowed: 0..{target.vocab_size - 1}")


_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
    "block_size",
    "markov_rank",
)
_POSITIVE = ("rms_norm_eps", "rope_theta", "partial_rotary_factor")
_SWITCHES = (
    "enable_confidence_head",
    "confidence_head_with_markov",
    "is_causal",
    "sample_from_anchor",
    "rope_interleave",
)
_MLA = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_ALIASES = {"dspark_block_size": "block_size", "dspark_noise_token_id": "mask_token_id"}
_NESTED = ("dspark_config", "dflash_config")
_SUPPORTED: dict[str, tuple[object, ...]] = {
    "architectures": (["LingDSparkModel"], ["Qwen3DSparkModel"]),
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "use_sliding_window": (False,),
    "quantization_config": (None,),
}
_WITHOUT_EFFECT = frozenset(
    """
    model_type auto_map dtype torch_dtype transformers_version attention_dropout initializer_range use_cache
    bos_token_id eos_token_id pad_token_id tie_word_embeddings num_target_layers rope_scaling rope_parameters
    layer_types sliding_window max_window_layers
    """.split()
)


def _flat(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Top level and nested objects as one, aliases resolved; ConfigError where two spellings disagree."""
    if "architectures" not in raw:
        raise ConfigError("the draft's config.json lacks architectures")
    for key in _NESTED:
        if not isinstance(raw.get(key) or {}, dict):
            raise ConfigError(f"{key}={raw[key]!r}: must be an object")
    flat: dict[str, Any] = {}
    for source in (raw, *(raw.get(key) or {} for key in _NESTED)):
        for spelt, value in source.items():
            key = _ALIASES.get(spelt, spelt)
            if key in _NESTED:
                continue
            if flat.setdefault(key, value) != value:
                raise ConfigError(f"{spelt}={value!r}: disagrees with {key}={flat[key]!r} elsewhere in config.json")
    return flat


def _rope_theta(values: Mapping[str, Any]) -> Any:
    parameters = values.get("rope_scaling") or values.get("rope_parameters") or {}
    if not isinstance(parameters, dict):
        raise ConfigError(f"rope_scaling={parameters!r}: must be an object")
    require("rope_scaling.rope_type", parameters.get("rope_type", parameters.get("type", "default")), ("default",))
    return values.get("rope_theta", parameters.get("rope_theta"))
