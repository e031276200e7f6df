"""MLA: the absorbed, paged operator against the expanded form written in NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from ling_runtime.config import ModelConfig
from ling_runtime.memory.caches import Caches
from ling_runtime.memory.window import Window
from ling_runtime.model.attention import MlaAttention
from ling_runtime.model.packing import Packer
from ling_runtime.ops.mla import tree_sum
from ling_runtime.ops.registry import Kernels
from ling_runtime.ops.rope import rope_table, rotate

if TYPE_CHECKING:
    from torch import Tensor

ROWS = 150


def rotate_numpy(x: np.ndarray, theta: float) -> np.ndarray:
    """Adjacent pairs as complex numbers, turned by position * theta^(-2j/d); x [T, ..., d]."""
    dims = x.shape[-1]
    angle = np.arange(len(x))[:, None] * theta ** (-np.arange(0, dims, 2) / dims)
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angle).reshape(len(x), *([1] * (x.ndim - 2)), dims // 2)
    return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)


def expanded(config: ModelConfig, w: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """Keys and values per head from the latents, causal softmax, head-wise gate: the prefill form of the sheet."""
    heads, nope, rank = config.num_attention_heads, config.qk_nope_head_dim, config.kv_lora_rank
    query = (x @ w["q_proj"].T).reshape(len(x), heads, -1)
    compressed = x @ w["kv_a_proj_with_mqa"].T
    latent = compressed[:, :rank]
    latent = latent / np.sqrt((latent**2).mean(-1, keepdims=True) + 1e-6) * w["kv_a_layernorm"]
    key_rope = rotate_numpy(compressed[:, rank:], config.rope_theta)
    up = (latent @ w["kv_b_proj"].T).reshape(len(x), heads, nope + config.v_head_dim)
    query_rope = rotate_numpy(query[..., nope:], config.rope_theta)
    scores = np.einsum("thd,shd->hts", query[..., :nope], up[..., :nope])
    scores = (scores + np.einsum("thd,sd->hts", query_rope, key_rope)) * config.qk_head_dim**-0.5
    scores = np.where(np.tril(np.ones(scores.shape[1:], bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    out = np.einsum("hts,shd->thd", weights / weights.sum(-1, keepdims=True), up[..., nope:])
    gate = 1 / (1 + np.exp(-(x @ w["g_proj"].T)))
    return (out * gate[..., None]).reshape(len(x), -1) @ w["dense"].T


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 2e-5)])
@pytest.mark.parametrize("rows", [1, 6, 64, ROWS])
def test_absorbed_windows_equal_the_expanded_whole(
    small_config: ModelConfig, small_tensors: dict[str, Tensor], dtype: torch.dtype, tolerance: float, rows: int
) -> None:
    prefix = "model.layers.1.attention."
    weights = {
        n.removeprefix(prefix).removesuffix(".weight"): t.double().numpy()
        for n, t in small_tensors.items()
        if n.startswith(prefix)
    }
    x = torch.randn(ROWS, small_config.hidden_size, dtype=torch.float64)
    device = torch.device("cpu")
    rope = rope_table(small_config, ROWS).to(dtype)
    layer = MlaAttention(small_config, Packer(small_tensors, prefix, dtype, device), 0, rope, Kernels())
    caches = Caches(small_config, max_requests=1, pages=8, dtype=dtype, device=device)
    slot = caches.reserve(ROWS)
    parts = []
    for start in range(0, ROWS, rows):
        window = Window(slots=(slot,), starts=(start,), rows=min(rows, ROWS - start))
        padded = torch.zeros(window.padded_rows, x.shape[1], dtype=dtype)
        padded[: window.rows] = x[start : start + rows]
        parts.append(layer(padded, caches.begin(window))[: window.rows])
    want = expanded(small_config, weights, x.numpy())
    assert np.abs(torch.cat(parts).double().numpy() - want).max() <= tolerance * np.abs(want).max()


def test_rotation_is_interleaved_and_keeps_dot_products_relative(small_config: ModelConfig) -> None:
    table = rope_table(small_config, 64)
    x, y = torch.randn(2, small_config.qk_rope_head_dim, dtype=torch.float64)

    def dot(i: int, j: int) -> float:
        return float(rotate(x, table[i]) @ rotate(y, table[j]))

    assert dot(9, 4) == pytest.approx(dot(40, 35), rel=1e-12)
    np.testing.assert_allclose(
        rotate(x.repeat(64, 1), table).numpy(),
        rotate_numpy(x.repeat(64, 1).numpy(), small_config.rope_theta),
        rtol=1e-9,
    )


def test_yarn_keeps_fast_dimensions_and_slows_slow_ones(small_json: dict[str, Any]) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    plain = ModelConfig.from_dict(small_json | {"qk_rope_head_dim": 32})
    config = ModelConfig.from_dict(small_json | {"qk_rope_head_dim": 32, "rope_scaling": yarn})
    angle = torch.atan2(rope_table(plain, 2)[1, 1], rope_table(plain, 2)[1, 0])
    scaled = torch.atan2(rope_table(config, 2)[1, 1], rope_table(config, 2)[1, 0])
    ratio = scaled / angle
    assert ratio[0] == pytest.approx(1.0)
    assert ratio[-1] == pytest.approx(0.25)
    assert (ratio.diff() <= 1e-12).all()
    assert rope_table(config, 1)[0, 0, 0] == pytest.approx(1.1386294), "tables carry 0.1 ln(4) + 1"


@pytest.mark.parametrize("pages", [1, 2, 3, 5, 8, 13])
def test_tree_sum_ignores_trailing_zeros(pages: int) -> None:
    x = torch.randn(pages, 7)
    for extra in range(6):
        longer = torch.cat([x, torch.zeros(extra, 7)])
        assert torch.equal(tree_sum(longer), tree_sum(x))
    torch.testing.assert_close(tree_sum(x.double()), x.double().sum(0))
