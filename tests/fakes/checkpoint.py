"""A checkpoint directory that is one in every respect the driver and the load client look at, without weights.

Its tokenizer knows bytes and no merges, so a token id is a byte, as in the fake engine's language.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

if TYPE_CHECKING:
    from pathlib import Path

NO_TENSORS = (2).to_bytes(8, "little") + b"{}"
CONFIG = {
    "architectures": ["BailingMoeV3ForCausalLM"],
    "model_type": "bailing_hybrid",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "head_dim": 16,
    "layer_group_size": 6,
    "first_k_dense_replace": 1,
    "short_conv_kernel_size": 4,
    "kda_lower_bound": -5.0,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "rope_theta": 10000.0,
    "max_position_embeddings": 8192,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 32,
    "routed_scaling_factor": 2.5,
    "rms_norm_eps": 1e-6,
    "eos_token_id": 0,
    "pad_token_id": 0,
    "num_nextn_predict_layers": 1,
}


DRAFT_CONFIG = {
    "architectures": ["LingDSparkModel"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "vocab_size": 256,
    "max_position_embeddings": 8192,
    "block_size": 8,
    "mask_token_id": 255,
    "target_layer_ids": [1, 4],
    "markov_rank": 8,
}


def write_draft(directory: Path, **changes: object) -> Path:
    """A draft of the same kind for the checkpoint below; `changes` go to its configuration."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(DRAFT_CONFIG | changes))
    (directory / "model.safetensors").write_bytes(NO_TENSORS)
    return directory


def write_checkpoint(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG))
    (directory / "model.safetensors").write_bytes(NO_TENSORS)
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    tokenizer = Tokenizer(models.BPE(vocab=_byte_vocabulary(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def _byte_vocabulary() -> dict[str, int]:
    """The byte-level alphabet in byte order: printable bytes stand for themselves, the others follow from U+0100."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256))
    return {chr(byte if byte in printable else 256 + next(others)): byte for byte in range(256)}
