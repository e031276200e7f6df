"""Reading config.json: what is supported comes through exactly, what is not is refused by its key."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from ling_runtime.config import ConfigError, ModelConfig

if TYPE_CHECKING:
    from pathlib import Path


def test_layer_pattern_puts_full_attention_last_in_each_group(small_config: ModelConfig) -> None:
    assert small_config.layers(mla=True) == (1, 3)
    assert small_config.layers(mla=False) == (0, 2)
    assert small_config.is_mla(small_config.num_hidden_layers), "the NEXTN layer is MLA"


def test_zero_limits_mean_no_clamp_and_the_draft_layer_has_none(small_config: ModelConfig) -> None:
    assert small_config.swiglu_limits(1) == (None, 0.5)
    assert small_config.swiglu_limits(2) == (0.4, None)
    assert small_config.swiglu_limits(4) == (None, None)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "llama"),
        ("hidden_act", "gelu"),
        ("use_bias", True),
        ("tie_word_embeddings", True),
        ("no_kda_lora", False),
        ("kda_safe_gate", False),
        ("q_lora_rank", 1536),
        ("use_mla_nope", True),
        ("gated_attention_proj_granularity_type", "element_wise"),
        ("rope_interleave", False),
        ("num_kv_heads_for_linear_attn", 2),
        ("norm_topk_prob", False),
        ("score_function", "softmax"),
        ("mtp_use_kda", True),
        ("num_nextn_predict_layers", 2),
        ("router_dtype", "fp8"),
        ("kda_lower_bound", -12.0),
        ("n_group", 3),
        ("n_group", 0),
        ("num_experts_per_tok", 5),
        ("expert_swiglu_limit_list", [1.0]),
        ("quantization_config", {"bits": 4}),
        ("multi_gate", True),
        ("rope_scaling", {"rope_type": "linear", "factor": 2.0}),
        ("rope_scaling", {"rope_type": "yarn", "factor": 2.0}),
        ("architectures", ["LlamaForCausalLM"]),
    ],
)
def test_unsupported_value_is_refused_by_name(small_json: dict[str, Any], key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key):
        ModelConfig.from_dict(small_json | {key: value})


def test_missing_key_is_named(small_json: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="kv_lora_rank"):
        ModelConfig.from_dict({k: v for k, v in small_json.items() if k != "kv_lora_rank"})


def test_unknown_key_is_logged_by_name(small_json: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        ModelConfig.from_dict(small_json | {"brand_new_mechanism": 1})
    assert "brand_new_mechanism" in caplog.text


def test_paths_that_are_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json"):
        ModelConfig.from_pretrained(tmp_path / "nothing")
    for content, message in ((b"{", "not JSON"), (b"\xff\xfe", "not JSON"), (b"[]", "not a JSON object")):
        (tmp_path / "config.json").write_bytes(content)
        with pytest.raises(ConfigError, match=message):
            ModelConfig.from_pretrained(tmp_path)


def test_rope_parameters_spelling_and_yarn_scales(small_json: dict[str, Any], tmp_path: Path) -> None:
    raw = {k: v for k, v in small_json.items() if k != "rope_theta"}
    raw["rope_parameters"] = {
        "rope_theta": 5.0e5,
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 512,
    }
    (tmp_path / "config.json").write_text(json.dumps(raw))
    config = ModelConfig.from_pretrained(tmp_path)
    assert config.rope_theta == 5.0e5
    assert config.rope_scaling is not None
    assert config.rope_scaling.table_scale == pytest.approx(1.0693147)
    assert config.attention_scale == pytest.approx((16 + 8) ** -0.5), (
        "no mscale_all_dim, no change of the softmax scale"
    )
