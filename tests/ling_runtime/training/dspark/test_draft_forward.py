"""The draft network for training: against one block written out naively, and against the runtime's own draft."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F

from ling_runtime.draft_config import DraftConfig
from ling_runtime.draft_weights import initialise_draft
from ling_runtime.executor.build import ExecutorSettings, build_executor
from ling_runtime.model.dspark import Dspark
from ling_runtime.ops.linear import pad_rows
from ling_runtime.training.dspark.forward import forward
from ling_runtime.training.dspark.heads import confidence, markov_bias

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.config import ModelConfig

MLA = {"attention_type": "mla", "kv_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12}
VARIANTS: dict[str, dict[str, Any]] = {
    "mha": {},
    "interleaved": {"rope_interleave": True},
    "partial": {"partial_rotary_factor": 0.5},
    "partial-interleaved": {"partial_rotary_factor": 0.5, "rope_interleave": True},
    "causal": {"is_causal": True},
    "masks-only": {"sample_from_anchor": False},
    "mla": MLA,
    "mla-interleaved": MLA | {"rope_interleave": True},
    "mla-causal": MLA | {"is_causal": True},
    "gated": {"markov_head_type": "gated"},
    "rnn": {"markov_head_type": "rnn"},
    "confidence-of-rows": {"confidence_head_with_markov": False},
}
LENGTH = 40
ANCHORS = (1, 17, 39, 18)


@pytest.fixture(params=VARIANTS)
def config(request: pytest.FixtureRequest, draft_json: dict[str, Any]) -> DraftConfig:
    return DraftConfig.from_dict(draft_json | VARIANTS[request.param])


@pytest.fixture
def params(config: DraftConfig) -> dict[str, Tensor]:
    return {name: tensor.double() for name, tensor in initialise_draft(config, seed=5).items()}


@pytest.fixture
def ids(config: DraftConfig) -> Tensor:
    return torch.randint(0, config.vocab_size, (2, LENGTH), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def hidden(config: DraftConfig) -> Tensor:
    width = config.hidden_size * len(config.target_layer_ids)
    return torch.randn(2, LENGTH, width, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@pytest.fixture
def embedding(small_tensors: dict[str, Tensor]) -> Tensor:
    return small_tensors["model.word_embeddings.weight"].double()


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def turned(x: Tensor, position: int, config: DraftConfig) -> Tensor:
    """One row's heads [H, w], turned pair by pair with sines and cosines of its own."""
    width, out = config.rotary_width, x.clone()
    for j in range(width // 2):
        a, b = (2 * j, 2 * j + 1) if config.rope_interleave else (j, j + width // 2)
        angle = torch.tensor(position * config.rope_theta ** (-2 * j / width), dtype=torch.float64)
        out[:, a] = x[:, a] * angle.cos() - x[:, b] * angle.sin()
        out[:, b] = x[:, a] * angle.sin() + x[:, b] * angle.cos()
    return out


def key_value(row: Tensor, position: int, p: dict[str, Tensor], config: DraftConfig) -> tuple[Tensor, Tensor]:
    """What one row offers to attention: keys and values of all query heads."""
    if config.attention_type == "mla":
        latent, rope = (p["kv_a_proj_with_mqa"] @ row).split([config.kv_lora_rank, config.qk_rope_head_dim])
        heads = (p["kv_b_proj"] @ rms(latent, p["kv_a_layernorm"])).view(config.num_attention_heads, -1)
        rope = turned(rope[None], position, config).expand(len(heads), -1)
        return torch.cat([heads[:, : config.qk_nope_head_dim], rope], 1), heads[:, config.qk_nope_head_dim :]
    keys = rms((p["k_proj"] @ row).view(config.num_key_value_heads, -1), p["k_norm"])
    values = (p["v_proj"] @ row).view(config.num_key_value_heads, -1)
    group = [head * config.num_key_value_heads // config.num_attention_heads for head in range(4)]
    return turned(keys, position, config)[group], values[group]


def query(row: Tensor, position: int, p: dict[str, Tensor], config: DraftConfig) -> Tensor:
    heads = (p["q_proj"] @ row).view(config.num_attention_heads, -1)
    if config.attention_type == "mla":
        nope = config.qk_nope_head_dim
        return torch.cat([heads[:, :nope], turned(heads[:, nope:], position, config)], 1)
    return turned(rms(heads, p["q_norm"]), position, config)


def one_block(
    params: dict[str, Tensor], config: DraftConfig, embedding: Tensor, hidden: Tensor, anchor: int, token: int
) -> Tensor:
    """A single block as serving sees it: no mask, but only the rows that are there."""
    context = [rms(params["fc.weight"] @ row, params["hidden_norm.weight"]) for row in hidden[:anchor]]
    rows = [embedding[token]] + [embedding[config.mask_token_id]] * (config.block_rows - 1)
    for layer in range(config.num_hidden_layers):
        prefix = f"layers.{layer}."
        norms = {n: params[f"{prefix}{n}_layernorm.weight"] for n in ("input", "post_attention")}
        own = f"{prefix}self_attn."
        p = {n[len(own) :].removesuffix(".weight"): t for n, t in params.items() if n.startswith(own)}
        normed = [rms(row, norms["input"]) for row in rows]
        pairs = [key_value(row, j, p, config) for j, row in enumerate(context)]
        pairs += [key_value(row, anchor + k, p, config) for k, row in enumerate(normed)]
        mixed = []
        for k, row in enumerate(rows):
            seen = pairs[: anchor + k + 1] if config.is_causal else pairs
            q = query(normed[k], anchor + k, p, config)
            weights = torch.stack([(q * key).sum(1) for key, _ in seen]).div(q.shape[1] ** 0.5).softmax(0)
            out = (weights[..., None] * torch.stack([value for _, value in seen])).sum(0)
            if config.attention_type == "mla":
                out = out * torch.sigmoid(p["g_proj"] @ normed[k])[:, None]
            mixed.append(row + p["dense" if config.attention_type == "mla" else "o_proj"] @ out.flatten())
        rows = []
        for row in mixed:
            x, gate, up, down = (
                rms(row, norms["post_attention"]),
                *(params[f"{prefix}mlp.{n}_proj.weight"] for n in ("gate", "up", "down")),
            )
            rows.append(row + down @ (F.silu(gate @ x) * (up @ x)))
    final = torch.stack([rms(row, params["norm.weight"]) for row in rows])
    return final[config.block_rows - config.block_size :]


def test_blocks_of_a_sequence_equal_single_blocks(
    params: dict[str, Tensor], config: DraftConfig, embedding: Tensor, hidden: Tensor, ids: Tensor
) -> None:
    anchors = torch.tensor([ANCHORS, ANCHORS[::-1]])
    got = forward(params, config, embedding, hidden, ids, anchors)
    for row, block in ((0, 0), (0, 2), (1, 2), (1, 3)):
        anchor = int(anchors[row, block])
        want = one_block(params, config, embedding, hidden[row], anchor, int(ids[row, anchor]))
        assert (got[row, block] - want).abs().max() <= 1e-10


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 3e-5)])
def test_training_s_draft_is_the_runtime_s(
    small_config: ModelConfig,
    small_tensors: dict[str, Tensor],
    params: dict[str, Tensor],
    config: DraftConfig,
    embedding: Tensor,
    hidden: Tensor,
    ids: Tensor,
    dtype: str,
    tolerance: float,
) -> None:
    target = build_executor(small_config, small_tensors, ExecutorSettings(dtype=dtype, max_requests=1))._model
    runtime = Dspark(target, initialise_draft(config, seed=5), config, positions=64)
    anchors = torch.tensor([ANCHORS[:2]] * 2)
    rows = forward(params, config, embedding, hidden, ids, anchors)
    previous = ids[:, 3 : 3 + config.block_size]
    bias = markov_bias(params, config, rows[:, 1], previous)
    sure = confidence(params, config, rows[:, 1], previous)
    with torch.inference_mode():
        contexts = []
        for sequence in hidden:
            captured = [pad_rows(part) for part in sequence.to(target.dtype).chunk(len(config.target_layer_ids), 1)]
            contexts.append(runtime.context(captured, torch.arange(LENGTH)))
        anchor = ANCHORS[1]
        served = runtime(ids[:, anchor], (anchor, anchor), contexts, config.block_size)
        step = runtime.markov.chain(served)
        biases = torch.stack([step(k, previous[:, k]) for k in range(config.block_size)], 1)
        assert runtime.confidence is not None
        confidences = runtime.confidence(served, previous)
    for got, want in ((served, rows[:, 1]), (biases, bias), (confidences, sure)):
        limit = tolerance if got.dtype == target.dtype else 3e-5
        assert (got.double() - want).abs().max() <= limit * want.abs().max()
