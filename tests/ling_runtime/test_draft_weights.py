"""The draft's tensors by name: both spellings, with and without a confidence head, and what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file

from ling_runtime.config import ConfigError
from ling_runtime.draft_config import DraftConfig
from ling_runtime.draft_table import draft_tensor_specs
from ling_runtime.draft_weights import initialise_draft, load_draft, save_draft

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor


@pytest.fixture
def config(draft_json: dict[str, Any]) -> DraftConfig:
    return DraftConfig.from_dict(draft_json)


@pytest.fixture
def tensors(config: DraftConfig) -> dict[str, Tensor]:
    return initialise_draft(config, seed=1)


def write(path: Path, tensors: dict[str, Tensor]) -> Path:
    save_file(tensors, path / "model.safetensors")
    return path


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_saved_weights_come_back(config: DraftConfig, tensors: dict[str, Tensor], tmp_path: Path) -> None:
    save_draft(tmp_path / "draft", tensors, config)
    assert DraftConfig.from_pretrained(tmp_path / "draft") == config
    assert equal(load_draft(tmp_path / "draft", config, confidence=True), tensors)


def test_prefix_is_optional_and_the_target_s_own_are_skipped(
    config: DraftConfig, tensors: dict[str, Tensor], tmp_path: Path
) -> None:
    shared = {"lm_head.weight": torch.ones(2), "model.embed_tokens.weight": torch.ones(2)}
    rotary = {"model.rotary_emb.inv_freq": torch.ones(2)}
    stored = {f"model.{name}": tensor for name, tensor in tensors.items()}
    assert equal(load_draft(write(tmp_path, stored | shared | rotary), config), tensors)


def test_without_the_confidence_head_only_static_verification_loads(
    config: DraftConfig, tensors: dict[str, Tensor], tmp_path: Path
) -> None:
    bare = {name: tensor for name, tensor in tensors.items() if not name.startswith("confidence_head.")}
    assert equal(load_draft(write(tmp_path, bare), config), bare)
    with pytest.raises(ConfigError, match=r"missing 2 \(confidence_head\.proj\.weight, .*needs the head"):
        load_draft(tmp_path, config, confidence=True)


def test_a_draft_made_without_the_head_says_so(draft_json: dict[str, Any], tmp_path: Path) -> None:
    config = DraftConfig.from_dict(draft_json | {"enable_confidence_head": False})
    save_draft(tmp_path, initialise_draft(config), config)
    load_draft(tmp_path, config)
    with pytest.raises(ConfigError, match="enable_confidence_head=false"):
        load_draft(tmp_path, config, confidence=True)


def test_missing_surplus_and_misshapen_are_named(
    config: DraftConfig, tensors: dict[str, Tensor], tmp_path: Path
) -> None:
    less = {name: tensor for name, tensor in tensors.items() if name != "fc.weight"}
    with pytest.raises(ConfigError, match=r"missing 1 \(fc\.weight\); not part of this draft 1 \(stray\)"):
        load_draft(write(tmp_path, less | {"stray": torch.ones(1)}), config)
    with pytest.raises(ConfigError, match=r"fc\.weight: shape \(3,\), expected \(64, 128\)"):
        load_draft(write(tmp_path, tensors | {"fc.weight": torch.ones(3)}), config)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (
            {"markov_head_type": "gated"},
            {"markov_head.gate_proj.weight": (16, 80), "markov_head.gate_proj.bias": (16,)},
        ),
        (
            {"markov_head_type": "rnn"},
            {"markov_head.joint_proj.weight": (48, 96), "markov_head.joint_proj.bias": (48,)},
        ),
        ({"confidence_head_with_markov": False}, {"confidence_head.proj.weight": (1, 64)}),
        (
            {
                "attention_type": "mla",
                "kv_lora_rank": 24,
                "qk_nope_head_dim": 16,
                "qk_rope_head_dim": 8,
                "v_head_dim": 12,
            },
            {"layers.1.self_attn.kv_b_proj.weight": (112, 24), "layers.1.self_attn.dense.weight": (64, 48)},
        ),
    ],
)
def test_variants_bring_their_own_tensors(
    draft_json: dict[str, Any], change: dict[str, object], names: dict[str, tuple[int, ...]]
) -> None:
    specs = draft_tensor_specs(DraftConfig.from_dict(draft_json | change))
    assert {name: specs[name].shape for name in names} == names
