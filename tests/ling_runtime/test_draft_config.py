"""Reading a draft's config.json: every published spelling, and what does not fit, by its key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ling_runtime.config import ConfigError
from ling_runtime.draft_config import DraftConfig

if TYPE_CHECKING:
    from pathlib import Path

    from ling_runtime.config import ModelConfig


def test_the_written_file_is_read_back_as_the_same_value(draft_json: dict[str, Any], tmp_path: Path) -> None:
    config = DraftConfig.from_dict(draft_json | {"markov_head_type": "rnn", "is_causal": True})
    config.write(tmp_path)
    assert DraftConfig.from_pretrained(tmp_path) == config


def test_aliases_and_nested_objects_say_the_same(draft_json: dict[str, Any]) -> None:
    nested = dict(draft_json)
    inner = {key: nested.pop(key) for key in ("target_layer_ids", "markov_rank")}
    inner["dspark_noise_token_id"] = nested.pop("mask_token_id")
    nested["dspark_block_size"] = nested.pop("block_size")
    for place in ("dspark_config", "dflash_config"):
        assert DraftConfig.from_dict(nested | {place: inner}) == DraftConfig.from_dict(draft_json)


def test_absent_keys_have_the_published_meaning(draft_json: dict[str, Any]) -> None:
    config = DraftConfig.from_dict(draft_json | {"architectures": ["Qwen3DSparkModel"]})
    assert (config.enable_confidence_head, config.confidence_head_with_markov) == (True, True)
    assert (config.is_causal, config.sample_from_anchor, config.rope_interleave) == (False, True, False)
    assert (config.attention_type, config.partial_rotary_factor) == ("mha", 1.0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, r"architectures=.*LingDSparkModel"),
        ({"markov_rank": 0}, "markov_rank=0"),
        ({"block_size": 2.5}, r"block_size=2\.5"),
        ({"dspark_block_size": 16}, "dspark_block_size=16: disagrees"),
        ({"dspark_config": {"mask_token_id": 1}}, "mask_token_id=1: disagrees"),
        ({"markov_head_type": "lstm"}, "markov_head_type='lstm'.*'rnn'"),
        ({"attention_type": "gqa"}, "attention_type='gqa'"),
        ({"attention_type": "mla"}, "kv_lora_rank=0"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3"),
        ({"target_layer_ids": [1, 1]}, r"target_layer_ids=\[1, 1\]"),
        ({"target_layer_ids": [2, 0]}, "strictly increasing"),
        ({"target_layer_ids": []}, r"target_layer_ids=\[\]"),
        ({"target_layer_ids": 3}, "target_layer_ids=3"),
        ({"partial_rotary_factor": 0.2}, "partial_rotary_factor"),
        ({"rope_theta": 0}, "rope_theta=0"),
        ({"rope_theta": "1e4"}, "rope_theta='1e4'"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps='tiny'"),
        ({"is_causal": "false"}, "is_causal='false'"),
        ({"dspark_config": [1]}, r"dspark_config=\[1\]"),
        ({"rope_scaling": "yarn"}, "rope_scaling='yarn'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2}}, "rope_scaling.rope_type='yarn'"),
        ({"layer_types": ["sliding_attention"]}, "layer_types"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"mask_token_id": None}, "lacks mask_token_id"),
        ({"target_layer_ids": None}, "lacks target_layer_ids"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    draft_json: dict[str, Any], change: dict[str, object], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        DraftConfig.from_dict(draft_json | change)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"hidden_size": 128}, "hidden_size=128.*which has 64"),
        ({"vocab_size": 97}, "vocab_size=97"),
        ({"target_layer_ids": [0, 3]}, r"target_layer_ids=\[0, 3\]: allowed for this target: 0\.\.2"),
        ({"target_layer_ids": [-1, 1]}, r"allowed for this target: 0\.\.2"),
        ({"mask_token_id": 96}, r"mask_token_id=96: allowed: 0\.\.95"),
        ({"mask_token_id": "7"}, r"mask_token_id='7': allowed: 0\.\.95"),
    ],
)
def test_a_draft_of_another_target_is_refused(
    draft_json: dict[str, Any], small_config: ModelConfig, change: dict[str, object], named: str
) -> None:
    DraftConfig.from_dict(draft_json).check_target(small_config)
    with pytest.raises(ConfigError, match=named):
        DraftConfig.from_dict(draft_json | change).check_target(small_config)
