"""What a Ling checkpoint is: its config.json as a frozen value, refused by name where this runtime would differ.

Field names are the Hugging Face keys. The surprise: `partial_rotary_factor` (0.5 in the published file) describes 64 of
128 dimensions and must not be applied again to `qk_rope_head_dim`, and `head_dim` belongs to KDA alone.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger(__name__)

TILE = 16
"""Rows of a decode tile: always this many, so that a row's bits do not depend on its window."""

WINDOW_ROWS = 64
"""Rows of a request up to which Triton's kernels take its window. The references beyond cannot be recorded."""


class ConfigError(ValueError):
    """A configuration this runtime cannot honour; the message names the key, its value and what is allowed."""


@dataclass(frozen=True, kw_only=True)
class YarnScaling:
    """YaRN as DeepSeek applies it: blended frequencies, and cos/sin tables multiplied by `table_scale`."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 0.0

    @property
    def table_scale(self) -> float:
        return self._mscale(self.mscale) / self._mscale(self.mscale_all_dim)

    @property
    def softmax_scale(self) -> float:
        """Factor on the attention scale; 1 unless `mscale_all_dim` is set."""
        return self._mscale(self.mscale_all_dim) ** 2

    def _mscale(self, weight: float) -> float:
        return 1.0 if self.factor <= 1.0 else 0.1 * weight * math.log(self.factor) + 1.0


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The Ling-3.0 architecture (`BailingMoeV3ForCausalLM`)."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    layer_group_size: int
    first_k_dense_replace: int
    short_conv_kernel_size: int
    kda_lower_bound: float
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    rope_theta: float
    max_position_embeddings: int
    num_experts: int
    num_experts_per_tok: int
    num_shared_experts: int
    n_group: int
    topk_group: int
    moe_intermediate_size: int
    moe_shared_expert_intermediate_size: int
    routed_scaling_factor: float
    expert_swiglu_limit_list: tuple[float, ...]
    share_expert_swiglu_limit_list: tuple[float, ...]
    rms_norm_eps: float
    eos_token_id: int
    pad_token_id: int
    num_nextn_predict_layers: int = 0
    router_dtype: str = "fp32"
    rope_scaling: YarnScaling | None = None

    def __post_init__(self) -> None:
        for name in ("expert_swiglu_limit_list", "share_expert_swiglu_limit_list"):
            require(name, len(getattr(self, name)), (self.num_hidden_layers,), what="length")
        require("router_dtype", self.router_dtype, ("fp32", "bf16"))
        require("num_nextn_predict_layers", self.num_nextn_predict_layers, (0, 1))
        if self.n_group < 1 or self.num_experts % self.n_group or self.topk_group > self.n_group:
            raise ConfigError(f"n_group={self.n_group}: must divide num_experts, topk_group at most n_group")
        if self.num_experts_per_tok > self.topk_group * (self.num_experts // self.n_group):
            raise ConfigError(f"num_experts_per_tok={self.num_experts_per_tok}: exceeds those of topk_group groups")
        if self.qk_rope_head_dim % 2:
            raise ConfigError(f"qk_rope_head_dim={self.qk_rope_head_dim}: must be even, RoPE rotates pairs")
        if not -5.0 <= self.kda_lower_bound < 0.0:
            raise ConfigError(f"kda_lower_bound={self.kda_lower_bound}: allowed -5 <= bound < 0 (fp32 range)")

    @classmethod
    def from_pretrained(cls, path: str | Path) -> ModelConfig:
        """Read `path`/config.json; ConfigError when it is missing, malformed or holds a value that is not supported."""
        return cls.from_dict(read_config(path, "model path"))

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> ModelConfig:
        """Convert a Hugging Face dictionary; unsupported values raise, keys nobody knows are logged."""
        for key, allowed in _SUPPORTED.items():
            if key in raw:
                require(key, raw[key], allowed)
        if "quantization_config" in raw:
            raise ConfigError("quantization_config: quantised weights are not supported; allowed: absent (bf16, fp32)")
        if raw.get("multi_gate") or raw.get("router_type"):
            raise ConfigError("multi_gate / router_type: only the single router gate is supported; allowed: absent")
        require("architectures", raw.get("architectures"), (["BailingMoeV3ForCausalLM"],))
        own = {f.name: f for f in dataclasses.fields(cls)}
        missing = [n for n, f in own.items() if f.default is dataclasses.MISSING and n not in raw and n not in _DERIVED]
        if missing:
            raise ConfigError(f"config.json lacks {', '.join(missing)}")
        unknown = sorted(set(raw) - set(own) - set(_SUPPORTED) - _WITHOUT_EFFECT)
        if unknown:
            log.warning("config.json keys without a meaning here, ignored: %s", ", ".join(unknown))
        values = {name: raw[name] for name in own if name in raw and name not in _DERIVED}
        values["expert_swiglu_limit_list"] = _limits(raw, "expert_swiglu_limit_list")
        values["share_expert_swiglu_limit_list"] = _limits(raw, "share_expert_swiglu_limit_list")
        values["rope_theta"], values["rope_scaling"] = _rope(raw)
        return cls(**values)

    def of_rank(self, size: int) -> ModelConfig:
        """One of `size` tensor-parallel ranks as a model: its heads and widths; the vocabulary is split by tensors.

        ConfigError where `size` does not divide what ranks share out.
        """
        if size == 1:
            return self
        for name in (*_SPLIT, "vocab_size"):
            if getattr(self, name) % size:
                raise ConfigError(f"tp_size={size}: does not divide {name}={getattr(self, name)}")
        return dataclasses.replace(self, **{name: getattr(self, name) // size for name in _SPLIT})

    @property
    def num_moe_layers(self) -> int:
        return self.num_hidden_layers - self.first_k_dense_replace

    @property
    def kda_width(self) -> int:
        """Inner width of KDA: heads times head_dim."""
        return self.num_attention_heads * self.head_dim

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def latent_width(self) -> int:
        """Values of one cached MLA token: the normed latent and the rotated shared key."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def attention_scale(self) -> float:
        scale: float = self.qk_head_dim**-0.5
        return scale * self.rope_scaling.softmax_scale if self.rope_scaling else scale

    def is_mla(self, layer: int) -> bool:
        """Layer i is full attention iff (i + 1) is a multiple of the group size; the NEXTN layer always is."""
        return layer >= self.num_hidden_layers or (layer + 1) % self.layer_group_size == 0

    def is_dense(self, layer: int) -> bool:
        return layer < self.first_k_dense_replace

    def layers(self, *, mla: bool) -> tuple[int, ...]:
        return tuple(i for i in range(self.num_hidden_layers) if self.is_mla(i) == mla)

    def swiglu_limits(self, layer: int) -> tuple[float | None, float | None]:
        """Clamps (routed, shared) after silu of `layer`; zero in the file means none, and the NEXTN layer has none."""
        if layer >= self.num_hidden_layers:
            return None, None
        return self.expert_swiglu_limit_list[layer] or None, self.share_expert_swiglu_limit_list[layer] or None


_SUPPORTED: dict[str, tuple[object, ...]] = {
    "model_type": ("bailing_hybrid",),
    "hidden_act": ("silu",),
    "use_bias": (False,),
    "use_qkv_bias": (False,),
    "tie_word_embeddings": (False,),
    "no_kda_lora": (True,),
    "kda_safe_gate": (True,),
    "q_lora_rank": (None,),
    "use_mla_nope": (False,),
    "gated_attention_proj_granularity_type": ("head_wise",),
    "rope_interleave": (True,),
    "num_kv_heads_for_linear_attn": (0, None),
    "moe_router_enable_expert_bias": (True,),
    "norm_topk_prob": (True,),
    "score_function": ("sigmoid",),
    "topk_method": ("noaux_tc",),
    "mtp_use_kda": (False,),
}
_SPLIT = (
    "num_attention_heads",
    "intermediate_size",
    "moe_intermediate_size",
    "moe_shared_expert_intermediate_size",
)
_DERIVED = frozenset({"rope_theta", "rope_scaling", "expert_swiglu_limit_list", "share_expert_swiglu_limit_list"})
_WITHOUT_EFFECT = frozenset(
    """
    architectures auto_map dtype torch_dtype transformers_version attention_dropout embedding_dropout
    output_dropout bos_token_id num_key_value_heads qk_head_dim rotary_dim partial_rotary_factor
    rope_parameters initializer_range use_qk_norm linear_silu group_norm_size use_cache
    max_window_layers scale_router_input seq_aux use_nGPT output_router_logits
    """.split()
)


def read_config(path: str | Path, what: str) -> dict[str, Any]:
    """The JSON object in `path`/config.json; ConfigError naming `what` the path was given as."""
    file = Path(path) / "config.json"
    if not file.is_file():
        raise ConfigError(f"{what} {str(path)!r}: no config.json there; expected a local checkpoint directory")
    try:
        raw = json.loads(file.read_text())
    except ValueError as error:  # bytes that are no text included
        raise ConfigError(f"{file}: not JSON ({error})") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{file}: not a JSON object")
    return raw


def require(key: str, value: object, allowed: tuple[object, ...], *, what: str = "value") -> None:
    if value not in allowed:
        raise ConfigError(f"{key}={value!r}: {what} not supported; allowed: {', '.join(map(repr, allowed))}")


def _limits(raw: Mapping[str, Any], key: str) -> tuple[float, ...]:
    return tuple(float(x) for x in raw.get(key) or [0.0] * raw["num_hidden_layers"])


def _rope(raw: Mapping[str, Any]) -> tuple[float, YarnScaling | None]:
    """RoPE base and scaling from either spelling: `rope_theta` + `rope_scaling`, or `rope_parameters`."""
    parameters = raw.get("rope_parameters") or {}
    scaling = raw.get("rope_scaling") or parameters
    theta = raw.get("rope_theta", parameters.get("rope_theta"))
    if theta is None:
        raise ConfigError("config.json lacks rope_theta")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    require("rope_scaling.rope_type", kind, ("default", "yarn"))
    if kind == "default":
        return float(theta), None
    names = [f.name for f in dataclasses.fields(YarnScaling)]
    try:
        return float(theta), YarnScaling(**{n: scaling[n] for n in names if n in scaling})
    except TypeError as error:
        raise ConfigError(f"rope_scaling: yarn needs factor and original_max_position_embeddings ({error})") from error
