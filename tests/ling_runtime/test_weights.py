"""The tensor table: exact published counts, names, and the tensor-parallel rule of every tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file

from ling_runtime.config import ConfigError, ModelConfig
from ling_runtime.tensor_table import nextn_specs, tensor_specs
from ling_runtime.weights import load, save, shard, unshard

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

PUBLISHED_MAIN, PUBLISHED_NEXTN = 124_414_211_552, 3_072_194_048


@pytest.fixture(scope="module")
def flash(small_json: dict[str, Any]) -> ModelConfig:
    """Ling-3.0-flash's published values."""
    return ModelConfig.from_dict(
        small_json
        | {
            "vocab_size": 157184,
            "hidden_size": 2560,
            "intermediate_size": 6144,
            "num_hidden_layers": 42,
            "num_attention_heads": 32,
            "head_dim": 128,
            "layer_group_size": 6,
            "first_k_dense_replace": 2,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "num_experts": 512,
            "num_experts_per_tok": 8,
            "n_group": 8,
            "topk_group": 4,
            "moe_intermediate_size": 768,
            "moe_shared_expert_intermediate_size": 768,
            "expert_swiglu_limit_list": [0.0] * 35 + [4.0] * 7,
            "share_expert_swiglu_limit_list": [0.0] * 34 + [5.0] * 6 + [7.0] * 2,
        }
    )


def test_published_parameter_counts_on_the_meta_device(flash: ModelConfig) -> None:
    meta = {n: torch.empty(s.shape, dtype=s.dtype, device="meta") for n, s in tensor_specs(flash).items()}
    draft = nextn_specs(flash)
    assert sum(t.numel() for n, t in meta.items() if n not in draft) == PUBLISHED_MAIN
    assert sum(t.numel() for n, t in meta.items() if n in draft) == PUBLISHED_NEXTN


@pytest.mark.parametrize(
    ("name", "shape", "split"),
    [
        ("model.word_embeddings.weight", (157184, 2560), "column"),
        ("lm_head.weight", (157184, 2560), "column"),
        ("model.layers.0.attention.q_proj.weight", (4096, 2560), "column"),
        ("model.layers.5.attention.q_proj.weight", (6144, 2560), "column"),
        ("model.layers.0.attention.g_proj.weight", (4096, 2560), "column"),
        ("model.layers.5.attention.g_proj.weight", (32, 2560), "column"),
        ("model.layers.0.attention.q_conv1d.weight", (4096, 1, 4), "column"),
        ("model.layers.0.attention.A_log", (32,), "column"),
        ("model.layers.0.attention.o_norm.weight", (128,), "replicate"),
        ("model.layers.0.attention.o_proj.weight", (2560, 4096), "row"),
        ("model.layers.41.attention.kv_a_proj_with_mqa.weight", (576, 2560), "replicate"),
        ("model.layers.41.attention.kv_b_proj.weight", (8192, 512), "column"),
        ("model.layers.41.attention.dense.weight", (2560, 4096), "row"),
        ("model.layers.1.mlp.down_proj.weight", (2560, 6144), "row"),
        ("model.layers.2.mlp.gate.expert_bias", (512,), "replicate"),
        ("model.layers.41.mlp.experts.511.up_proj.weight", (768, 2560), "column"),
        ("model.layers.42.eh_proj.weight", (2560, 5120), "replicate"),
        ("model.layers.42.mlp.shared_experts.down_proj.weight", (2560, 768), "row"),
    ],
)
def test_names_shapes_and_rules(flash: ModelConfig, name: str, shape: tuple[int, ...], split: str) -> None:
    spec = tensor_specs(flash)[name]
    assert (spec.shape, spec.split) == (shape, split)


def test_weights_per_rank_at_tp4_are_the_published_63_gb(flash: ModelConfig) -> None:
    size = sum(s.numel * s.dtype.itemsize / (1 if s.dim is None else 4) for s in tensor_specs(flash).values())
    assert size / 1e9 == pytest.approx(63.86, abs=0.01)


def test_shards_of_four_ranks_put_back_together(
    small_config: ModelConfig, small_tensors: dict[str, Tensor], tmp_path: Path
) -> None:
    save(tmp_path, small_tensors, small_config)
    specs = tensor_specs(small_config)
    ranks = [load(tmp_path, specs, rank=r, size=4) for r in range(4)]
    for name, spec in specs.items():
        assert torch.equal(unshard(spec, [rank[name] for rank in ranks]), small_tensors[name]), name
        if spec.dim is not None:
            assert ranks[0][name].shape[spec.dim] * 4 == spec.shape[spec.dim]


def test_ranks_that_do_not_divide_are_refused(small_config: ModelConfig, small_tensors: dict[str, Tensor]) -> None:
    name = "model.layers.0.attention.A_log"
    with pytest.raises(ConfigError, match="tp_size=3"):
        shard(tensor_specs(small_config)[name], small_tensors[name], 0, 3)


def test_loading_names_what_is_wrong(
    small_config: ModelConfig, small_tensors: dict[str, Tensor], tmp_path: Path
) -> None:
    specs = tensor_specs(small_config)
    with pytest.raises(ConfigError, match="safetensors"):
        load(tmp_path, specs)
    broken = dict(small_tensors)
    broken["model.layers.0.attention.surprise"] = broken.pop("model.norm.weight")
    save_file(broken, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"missing 1 \(model\.norm\.weight\).*surprise"):
        load(tmp_path, specs)
    save_file(small_tensors | {"model.norm.weight": torch.zeros(3)}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"model\.norm\.weight: shape \(3,\)"):
        load(tmp_path, specs)


@pytest.mark.parametrize("kept", [0, 1000])
def test_a_truncated_file_is_named(
    small_config: ModelConfig, small_tensors: dict[str, Tensor], tmp_path: Path, kept: int
) -> None:
    save(tmp_path, small_tensors, small_config)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ConfigError, match=r"model\.safetensors: cannot be read"):
        load(tmp_path, tensor_specs(small_config))


def test_alias_and_vestiges_load(small_config: ModelConfig, small_tensors: dict[str, Tensor], tmp_path: Path) -> None:
    stored = {n.replace("expert_bias", "e_score_correction_bias"): t for n, t in small_tensors.items()}
    stored["model.layers.1.attention.rotary_emb.inv_freq"] = torch.zeros(4)
    save_file(stored, tmp_path / "model.safetensors")
    loaded = load(tmp_path, tensor_specs(small_config))
    assert loaded.keys() == small_tensors.keys()
