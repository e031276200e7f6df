"""Small Ling models: every mechanism present, small enough for a test to run hundreds of passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pytest
import torch

from ling_runtime.config import ModelConfig
from ling_runtime.draft_config import DraftConfig
from ling_runtime.draft_weights import initialise_draft, save_draft
from ling_runtime.weights import initialise

if TYPE_CHECKING:
    from torch import Tensor


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter for the kernels of one test, where there is no card."""
    if not torch.cuda.is_available():
        monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def small_json() -> dict[str, Any]:
    return {
        "architectures": ["BailingMoeV3ForCausalLM"],
        "model_type": "bailing_hybrid",
        "vocab_size": 96,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "head_dim": 16,
        "layer_group_size": 2,
        "first_k_dense_replace": 1,
        "short_conv_kernel_size": 4,
        "kda_lower_bound": -5.0,
        "kv_lora_rank": 24,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "rope_theta": 10000,
        "max_position_embeddings": 1024,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "num_shared_experts": 1,
        "n_group": 4,
        "topk_group": 2,
        "moe_intermediate_size": 32,
        "moe_shared_expert_intermediate_size": 32,
        "routed_scaling_factor": 2.5,
        "expert_swiglu_limit_list": [0.0, 0.0, 0.4, 0.5],
        "share_expert_swiglu_limit_list": [0.0, 0.5, 0.0, 0.7],
        "num_nextn_predict_layers": 1,
        "rms_norm_eps": 1e-6,
        "eos_token_id": 95,
        "pad_token_id": 94,
    }


@pytest.fixture(scope="session")
def small_config(small_json: dict[str, Any]) -> ModelConfig:
    return ModelConfig.from_dict(small_json)


@pytest.fixture(scope="session")
def small_tensors(small_config: ModelConfig) -> dict[str, Tensor]:
    return initialise(small_config, seed=3)


@pytest.fixture(scope="session")
def draft_json() -> dict[str, Any]:
    """A draft for the small model."""
    return {
        "architectures": ["LingDSparkModel"],
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000,
        "vocab_size": 96,
        "max_position_embeddings": 1024,
        "block_size": 8,
        "mask_token_id": 94,
        "target_layer_ids": [0, 2],
        "markov_rank": 16,
    }


class WriteDraft(Protocol):
    """A random draft for the small model as a checkpoint directory, with changes to `draft_json`."""

    def __call__(self, **changes: Any) -> str: ...


@pytest.fixture(scope="session")
def write_draft(draft_json: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> WriteDraft:
    def write(**changes: Any) -> str:
        config = DraftConfig.from_dict(draft_json | changes)
        path = tmp_path_factory.mktemp("draft")
        save_draft(path, initialise_draft(config, seed=5), config)
        return str(path)

    return write
