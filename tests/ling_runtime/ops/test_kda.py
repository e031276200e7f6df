"""KDA against an independent NumPy reference: convolution, gate, chunk form, recurrence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from ling_runtime.config import TILE
from ling_runtime.memory.caches import Caches
from ling_runtime.memory.window import Window
from ling_runtime.model.attention import KdaAttention
from ling_runtime.model.packing import Packer
from ling_runtime.ops.kda import chunked, recurrent, short_conv
from ling_runtime.ops.registry import Kernels

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.config import ModelConfig

BATCH, HEADS, WIDTH, BOUND = 2, 3, 16, -5.0


def packed_rows(rows: int, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Rows q|k|v|g|beta with unit keys and log decays over the whole range (bound, 0)."""
    noise = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(BATCH, rows, HEADS, *shape, generator=noise, dtype=torch.float64)

    query, key = (torch.nn.functional.normalize(draw(WIDTH), dim=-1) for _ in range(2))
    g = BOUND * torch.sigmoid(3 * draw(WIDTH))
    return torch.cat([query * WIDTH**-0.5, key, draw(WIDTH), g, torch.sigmoid(draw(1))], dim=-1).to(dtype)


def numpy_recurrence(packed: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One row after the other, written from the law: decay, predict from the decayed state, correct, read."""
    out = np.zeros((*packed.shape[:3], WIDTH))
    state = state.copy()
    for b in range(packed.shape[0]):
        for t in range(packed.shape[1]):
            for h in range(HEADS):
                q, k, v, g, beta = np.split(packed[b, t, h], [WIDTH, 2 * WIDTH, 3 * WIDTH, 4 * WIDTH])
                decayed = state[b, h] * np.exp(g)[:, None]
                state[b, h] = decayed + np.outer(k, beta * (v - decayed.T @ k))
                out[b, t, h] = state[b, h].T @ q
    return out, state


def in_chunks(packed: torch.Tensor) -> torch.Tensor:
    return packed.view(BATCH, -1, TILE, HEADS, packed.shape[-1])


def start_state(dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(BATCH, HEADS, WIDTH, WIDTH, generator=torch.Generator().manual_seed(9), dtype=dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 2e-5)])
def test_chunked_and_recurrent_agree_with_numpy(dtype: torch.dtype, tolerance: float) -> None:
    packed, state = packed_rows(48, dtype=dtype), start_state(dtype)
    expected, end = numpy_recurrence(packed.double().numpy(), state.double().numpy())
    step_out, step_end = recurrent(packed, state)
    out, states = chunked(in_chunks(packed), state, bound=BOUND, closed=3)
    for got, want in (
        (step_out, expected),
        (step_end, end),
        (out.reshape(expected.shape), expected),
        (states[:, 3], end),
    ):
        assert np.abs(got.double().numpy() - want).max() <= tolerance * np.abs(want).max()


@pytest.mark.parametrize("level", [-4.99, -1e-4])
def test_chunk_form_survives_the_ends_of_the_decay_range(level: float) -> None:
    packed, state = packed_rows(32, dtype=torch.float32), start_state(torch.float32)
    packed[..., 3 * WIDTH : 4 * WIDTH] = level
    expected, end = numpy_recurrence(packed.double().numpy(), state.double().numpy())
    out, states = chunked(in_chunks(packed), state, bound=BOUND, closed=2)
    assert np.abs(out.reshape(expected.shape).double().numpy() - expected).max() <= 2e-5 * np.abs(expected).max()
    assert np.abs(states[:, 2].double().numpy() - end).max() <= 2e-5 * np.abs(end).max()


def test_states_are_those_at_chunk_ends() -> None:
    packed, state = packed_rows(48), start_state(torch.float64)
    _, states = chunked(in_chunks(packed), state, bound=BOUND, closed=2)
    assert states.shape[1] == 3
    assert torch.equal(states[:, 0], state)
    torch.testing.assert_close(states[:, 1], recurrent(packed[:, :TILE], state)[1], rtol=1e-10, atol=1e-12)


def test_short_conv_last_tap_is_the_current_row() -> None:
    source = torch.randn(1, 3 + 5, 6, dtype=torch.float64)
    weight = torch.randn(6, 4, dtype=torch.float64)
    plain = np.stack([sum(weight[:, j].numpy() * source[0, t + j].numpy() for j in range(4)) for t in range(5)])
    np.testing.assert_allclose(short_conv(source, weight)[0].numpy(), plain / (1 + np.exp(-plain)), rtol=1e-12)


def test_window_follows_the_safe_gate_and_the_norms(
    small_config: ModelConfig, small_tensors: dict[str, Tensor]
) -> None:
    """The rows a layer keeps, recomputed from its checkpoint tensors in NumPy."""
    prefix = "model.layers.0.attention."
    device, heads, width = torch.device("cpu"), small_config.num_attention_heads, small_config.head_dim
    layer = KdaAttention(small_config, Packer(small_tensors, prefix, torch.float64, device), 0, Kernels())
    x = torch.randn(TILE, small_config.hidden_size, dtype=torch.float64)
    caches = Caches(small_config, max_requests=1, pages=1, dtype=torch.float64, device=device)
    window = Window(slots=(caches.reserve(TILE),), starts=(0,), rows=5)
    layer(x, caches.begin(window))
    caches.recurrent.commit(window, torch.tensor([5]))
    ring = caches.recurrent.snapshot(window.slots[0])[1][0]
    query, key, value, g, beta = np.split(ring[4].numpy(), [width, 2 * width, 3 * width, 4 * width], axis=-1)
    w = {n.removeprefix(prefix): t.double().numpy() for n, t in small_tensors.items() if n.startswith(prefix)}

    def convolved(name: str) -> np.ndarray:
        rows = x[1:5].numpy() @ w[f"{name}_proj.weight"].T
        mixed = (rows * w[f"{name}_conv1d.weight"][:, 0].T).sum(0)
        return (mixed / (1 + np.exp(-mixed))).reshape(heads, width)

    def unit(rows: np.ndarray) -> np.ndarray:
        return rows / np.sqrt((rows**2).sum(-1, keepdims=True) + 1e-6)

    np.testing.assert_allclose(query, unit(convolved("q")) * width**-0.5, rtol=1e-10)
    np.testing.assert_allclose(key, unit(convolved("k")), rtol=1e-10)
    np.testing.assert_allclose(value, convolved("v"), rtol=1e-10)
    f = (x[4].numpy() @ w["f_proj.weight"].T + w["dt_bias"]).reshape(heads, width)
    np.testing.assert_allclose(g, BOUND / (1 + np.exp(-np.exp(w["A_log"])[:, None] * f)), rtol=1e-10)
    np.testing.assert_allclose(beta[:, 0], 1 / (1 + np.exp(-(w["b_proj.weight"] @ x[4].numpy()))), rtol=1e-10)
    assert (g > BOUND).all()
    assert (g < 0).all()
