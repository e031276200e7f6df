"""KDA against an independent NumPy reference: convolution, gate, chunk form, recurrence."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ling_runtime.config import TILE
from ling_runtime.ops.kda import chunked, pack_rows, recurrent, short_conv

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


def test_packing_follows_the_safe_gate_and_the_norms() -> None:
    mixed = torch.randn(1, 2, 3, HEADS, WIDTH, dtype=torch.float64)
    f, b = torch.randn(1, 2, HEADS * WIDTH, dtype=torch.float64), torch.randn(1, 2, HEADS, dtype=torch.float64)
    a_log, dt = torch.randn(HEADS, 1, dtype=torch.float64), torch.randn(HEADS, WIDTH, dtype=torch.float64)
    weights = SimpleNamespace(decay=a_log.exp(), dt_bias=dt, lower_bound=BOUND)
    row = pack_rows(mixed, f, b, weights)[0, 1].numpy()
    query, key, value, g, beta = np.split(row, [WIDTH, 2 * WIDTH, 3 * WIDTH, 4 * WIDTH], axis=-1)
    raw_q, raw_k, raw_v = mixed[0, 1].numpy()
    np.testing.assert_allclose(
        query, raw_q / np.sqrt((raw_q**2).sum(-1, keepdims=True) + 1e-6) * WIDTH**-0.5, rtol=1e-12
    )
    np.testing.assert_allclose(key, raw_k / np.sqrt((raw_k**2).sum(-1, keepdims=True) + 1e-6), rtol=1e-12)
    np.testing.assert_allclose(value, raw_v)
    inner = np.exp(a_log.numpy()) * (f[0, 1].view(HEADS, WIDTH).numpy() + dt.numpy())
    np.testing.assert_allclose(g, BOUND / (1 + np.exp(-inner)), rtol=1e-12)
    np.testing.assert_allclose(beta[:, 0], 1 / (1 + np.exp(-b[0, 1].numpy())), rtol=1e-12)
    assert (g > BOUND).all()
    assert (g < 0).all()
