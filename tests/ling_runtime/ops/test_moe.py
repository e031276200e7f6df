"""Routing and experts against a NumPy loop over rows; alignments against each other, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ling_runtime.ops.activation import sigmoid, silu, swiglu
from ling_runtime.ops.moe import PAIR_LIMIT, align_by_expert, align_by_pair, combine, run_experts
from ling_runtime.ops.router import RouterWeights, route, select

EXPERTS, HIDDEN, INNER, TOP = 8, 32, 24, 3


def router_weights(**changes: object) -> RouterWeights:
    noise = torch.Generator().manual_seed(1)
    values = {
        "gate": torch.randn(EXPERTS, HIDDEN, generator=noise, dtype=torch.float64),
        "bias": 0.3 * torch.randn(EXPERTS, generator=noise, dtype=torch.float64),
        "groups": 4,
        "kept_groups": 2,
        "experts_per_row": TOP,
        "scale": 2.5,
    }
    return RouterWeights(**(values | changes))  # type: ignore[arg-type]


def route_numpy(x: np.ndarray, w: RouterWeights) -> tuple[list[int], list[float]]:
    """One row: groups by their two best biased scores, experts by biased score, weights without the bias."""
    scores = 1 / (1 + np.exp(-(w.gate.numpy() @ x)))
    biased = scores + w.bias.numpy()
    groups = biased.reshape(w.groups, -1)
    best = np.argsort([-np.sort(g)[-2:].sum() for g in groups], kind="stable")[: w.kept_groups]
    size = groups.shape[1]
    allowed = [e for e in range(EXPERTS) if e // size in best]
    chosen = sorted(allowed, key=lambda e: (-biased[e], e))[: w.experts_per_row]
    total = sum(scores[e] for e in chosen)
    return chosen, [scores[e] / total * w.scale for e in chosen]


def test_router_matches_numpy() -> None:
    x = torch.randn(32, HIDDEN, dtype=torch.float64)
    ids, weights = route(x, router_weights())
    for row in range(32):
        expected_ids, expected = route_numpy(x[row].numpy(), router_weights())
        assert ids[row].tolist() == expected_ids
        np.testing.assert_allclose(weights[row].numpy(), expected, rtol=1e-10)


def test_bias_selects_but_does_not_weigh() -> None:
    x = torch.randn(16, HIDDEN, dtype=torch.float64)
    push = torch.zeros(EXPERTS, dtype=torch.float64)
    push[5] = 10.0
    ids, weights = route(x, router_weights(bias=push))
    assert (ids[:, 0] == 5).all()
    torch.testing.assert_close(weights.sum(-1), torch.full((16,), 2.5, dtype=torch.float64))


def test_ties_go_to_the_lowest_index() -> None:
    ids, _ = select(torch.zeros(2, EXPERTS), router_weights(bias=torch.zeros(EXPERTS)))
    assert ids.tolist() == [[0, 1, 2], [0, 1, 2]]


@pytest.mark.parametrize("limit", [None, 0.3])
@pytest.mark.parametrize("rows", [1, 5, 21])
def test_experts_match_a_loop_over_pairs(rows: int, limit: float | None) -> None:
    x = torch.randn(rows, HIDDEN, dtype=torch.float64)
    gate_up = torch.randn(EXPERTS, 2 * INNER, HIDDEN, dtype=torch.float64)
    down = torch.randn(EXPERTS, HIDDEN, INNER, dtype=torch.float64)
    ids = torch.rand(rows, EXPERTS).argsort(-1)[:, :TOP]
    weights = torch.rand(rows, TOP, dtype=torch.float64)
    out = run_experts(x.repeat_interleave(TOP, 0), align_by_expert(ids, EXPERTS), gate_up, down, limit)
    got = combine(out.view(rows, TOP, HIDDEN), weights)
    bound = np.inf if limit is None else limit
    for row in range(rows):
        want = np.zeros(HIDDEN)
        for slot in range(TOP):
            expert = int(ids[row, slot])
            gate, up = np.split(gate_up[expert].numpy() @ x[row].numpy(), 2)
            hidden = np.minimum(gate / (1 + np.exp(-gate)), bound) * np.clip(up, -bound, bound)
            want += float(weights[row, slot]) * (down[expert].numpy() @ hidden)
        np.testing.assert_allclose(got[row].numpy(), want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 4, 6, 17, 21, 40])
def test_alignments_are_bitwise_equal(rows: int, dtype: torch.dtype) -> None:
    x = torch.randn(rows * TOP, HIDDEN, dtype=dtype)
    gate_up, down = (
        torch.randn(EXPERTS, 2 * INNER, HIDDEN, dtype=dtype),
        torch.randn(EXPERTS, HIDDEN, INNER, dtype=dtype),
    )
    ids = torch.rand(rows, EXPERTS).argsort(-1)[:, :TOP]
    by_expert = run_experts(x, align_by_expert(ids, EXPERTS), gate_up, down, 4.0)
    by_pair = run_experts(x, align_by_pair(ids, EXPERTS), gate_up, down, 4.0)
    assert torch.equal(by_expert, by_pair)


def test_pair_axis_gives_each_pair_a_tile_up_to_its_limit() -> None:
    few = torch.zeros(PAIR_LIMIT // 4, 4, dtype=torch.int64)
    assert len(align_by_pair(few, EXPERTS).experts) == PAIR_LIMIT
    assert len(align_by_pair(torch.cat([few, few]), EXPERTS).experts) == PAIR_LIMIT * 2 // 16


def test_clamp_is_after_silu() -> None:
    both = torch.tensor([[9.0, 9.0, -9.0, 5.0, -5.0, 0.5]])
    gate, up = both.chunk(2, dim=-1)
    want = (torch.nn.functional.silu(gate)).clamp(max=4.0) * up.clamp(-4.0, 4.0)
    torch.testing.assert_close(swiglu(both, 4.0), want)
    assert float(swiglu(both, 4.0)[0, 0]) == 16.0, "saturates at the limit itself, not at silu(limit)"


def test_activations_do_not_depend_on_the_place_in_the_buffer() -> None:
    x = torch.randn(4099) * 4
    for function in (sigmoid, silu):
        whole = function(x)
        assert torch.equal(whole, torch.cat([function(part) for part in x.split(7)]))
        torch.testing.assert_close(whole, getattr(torch.nn.functional, function.__name__)(x))
