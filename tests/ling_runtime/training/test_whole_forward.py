"""The whole model: sequence form against token-by-token form, causality, and gradients that reach every parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F

from ling_runtime.training import dense, draft
from ling_runtime.training.decode import Decoder, generate_greedily
from ling_runtime.training.initialise import initialise
from ling_runtime.training.layers import MlaProjections, moe, route, swiglu, top_mask
from ling_runtime.training.pretrain import head_loss, losses, trainable

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.config import ModelConfig


@pytest.fixture(scope="module")
def exact(small_tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.double() for name, value in small_tensors.items()}


def some_ids(config: ModelConfig, rows: int, length: int) -> Tensor:
    return torch.randint(0, config.vocab_size, (rows, length), generator=torch.Generator().manual_seed(7))


def test_sequence_form_equals_token_by_token(exact: dict[str, Tensor], small_config: ModelConfig) -> None:
    ids = some_ids(small_config, 2, 41)
    decoder = Decoder(exact, small_config, batch=2, capacity=48)
    want = torch.stack([decoder.step(ids[:, t]) for t in range(41)], 1)
    got = dense.forward(exact, small_config, ids).hidden
    assert (got - want).norm() <= 1e-10 * want.norm()


def test_later_tokens_change_nothing_before_them(exact: dict[str, Tensor], small_config: ModelConfig) -> None:
    ids = some_ids(small_config, 1, 40)
    other = ids.clone()
    other[:, 25:] = (other[:, 25:] + 1) % small_config.vocab_size
    one, two = (dense.forward(exact, small_config, x).hidden for x in (ids, other))
    torch.testing.assert_close(one[:, :25], two[:, :25], rtol=0, atol=1e-12)
    assert (one[:, 25:] - two[:, 25:]).norm() > 1e-3


def test_gradients_reach_every_parameter(small_config: ModelConfig) -> None:
    params = initialise(small_config, 0)
    for name, value in params.items():
        if name.endswith(("o_proj.weight", "dense.weight", "down_proj.weight")):
            value.normal_(0, 0.1, generator=torch.Generator().manual_seed(1))
    weights = trainable(params)
    result = losses(params, small_config, some_ids(small_config, 4, 64), dense.PLAIN, head_loss)
    (result.target + result.nextn).backward()
    assert [name for name, value in weights.items() if value.grad is None or not value.grad.abs().max() > 0] == []


def test_greedy_generation_reads_each_prompt_then_its_own_choice(
    exact: dict[str, Tensor], small_config: ModelConfig
) -> None:
    prompts = [[3, 1, 4], [1, 5, 9, 2, 6, 5]]
    ids = generate_greedily(exact, small_config, prompts, 16)
    choice = dense.logits(exact, dense.forward(exact, small_config, ids).hidden).argmax(-1)
    for row, best, prompt in zip(ids, choice, prompts, strict=True):
        assert row[: len(prompt)].tolist() == prompt
        assert row[len(prompt) :].tolist() == best[len(prompt) - 1 : -1].tolist()


def test_ties_go_to_the_lower_index() -> None:
    assert top_mask(torch.tensor([1.0, 3.0, 3.0, 3.0, 0.0]), 2).tolist() == [False, True, True, False, False]


def test_clamp_follows_silu() -> None:
    gate, up = torch.tensor([10.0, -1.0, 4.01]), torch.tensor([-9.0, 2.0, 0.5])
    want = F.silu(gate).clamp(max=4.0) * up.clamp(-4.0, 4.0)
    torch.testing.assert_close(swiglu(gate, up, torch.tensor(4.0)), want)
    assert swiglu(gate, up, torch.tensor(4.0))[0] == -16.0


def test_bias_selects_and_does_not_weigh(exact: dict[str, Tensor], small_config: ModelConfig) -> None:
    p = {k.removeprefix("model.layers.2.mlp."): v for k, v in exact.items() if k.startswith("model.layers.2.mlp.")}
    x = torch.randn(5, small_config.hidden_size, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    bias = torch.zeros(small_config.num_experts, dtype=torch.float64)
    bias[6:] = 100.0  # two experts of one group: that group and both of them must be chosen
    weights = route(x, {**p, "gate.expert_bias": bias}, small_config)
    assert (weights > 0).sum(-1).tolist() == [small_config.num_experts_per_tok] * 5
    assert (weights[:, 6:] > 0).all()
    scores = torch.sigmoid(x @ p["gate.weight"].T)
    chosen = scores * (weights > 0)
    torch.testing.assert_close(weights, chosen / chosen.sum(-1, keepdim=True) * small_config.routed_scaling_factor)


def test_dense_experts_equal_one_expert_at_a_time(exact: dict[str, Tensor], small_config: ModelConfig) -> None:
    p = {k.removeprefix("model.layers.2.mlp."): v for k, v in exact.items() if k.startswith("model.layers.2.mlp.")}
    x = torch.randn(3, small_config.hidden_size, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    limit, shared_limit = torch.tensor(0.4), torch.tensor(0.6)

    def expert(prefix: str, clamp: Tensor) -> Tensor:
        gate, up, down = (p[f"{prefix}.{name}_proj.weight"] for name in ("gate", "up", "down"))
        return (F.silu(x @ gate.T).clamp(max=clamp) * (x @ up.T).clamp(-clamp, clamp)) @ down.T

    weights = route(x, p, small_config)
    want = sum(weights[:, e, None] * expert(f"experts.{e}", limit) for e in range(small_config.num_experts))
    want = want + expert("shared_experts", shared_limit)
    got, load = moe(x, p, small_config, limit.double(), shared_limit.double())
    torch.testing.assert_close(got, want)
    assert load.sum().item() == pytest.approx(small_config.num_experts_per_tok)


# ---------------------------------------------------------------------------------------------------------------------
# The chain of drafts


def test_chain_equals_serving_one_base_at_a_time(exact: dict[str, Tensor], small_config: ModelConfig) -> None:
    """Cut off everything after a base: committed rows up to it, then one row per depth, as a server would run them."""
    ids, depth = some_ids(small_config, 1, 24), 4
    hidden = dense.forward(exact, small_config, ids).hidden
    whole = draft.chain(exact, small_config, hidden[:, :20], ids, depth)
    for base in (0, 7, 19):
        rows = base + 1
        alone = draft.chain(exact, small_config, hidden[:, :rows], ids[:, : rows + depth], depth)
        for one, other in zip(whole, alone, strict=True):
            torch.testing.assert_close(one.hidden[:, base], other.hidden[:, base], rtol=1e-10, atol=1e-12)


def test_depths_attend_to_committed_rows_and_their_own_chain() -> None:
    """Attention of depth 3 against a softmax over the explicit list of keys that a server's cache would hold."""
    draw = torch.Generator().manual_seed(5)
    rows = [MlaProjections(*torch.randn(4, 1, 2, 6, 8, dtype=torch.float64, generator=draw)) for _ in range(3)]
    got = draft._chain_attention(rows)
    for base in range(6):
        for head in range(2):
            held = (slice(0, base + 1), slice(base, base + 1), slice(base, base + 1))
            keys = torch.cat([row.k[0, head, part] for row, part in zip(rows, held, strict=True)])
            values = torch.cat([row.v[0, head, part] for row, part in zip(rows, held, strict=True)])
            weights = (keys @ rows[2].q[0, head, base] * 8**-0.5).softmax(0)
            torch.testing.assert_close(got[0, head, base], weights @ values)
