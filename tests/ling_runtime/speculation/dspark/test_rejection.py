"""Acceptance of sampled drafts: exact probabilities by enumeration over the noise's thresholds, and edges."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from ling_runtime.speculation.dspark.rejection import Chain, Verified, block_verification, chain_rejection

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Rule = Callable[[Chain], Verified]

RULES = [chain_rejection, block_verification]
DRAFTS, VOCAB = 3, 3


def tables(seed: int) -> tuple[Tensor, Tensor]:
    """p [4, 3^3.., V] and q as functions of the drafts before: [g + 1, 27, V], the first i drafts count at row i."""
    noise = torch.Generator().manual_seed(seed)
    p = torch.zeros(DRAFTS + 1, VOCAB**DRAFTS, VOCAB, dtype=torch.float64)
    q = torch.zeros(DRAFTS + 1, VOCAB**DRAFTS, VOCAB, dtype=torch.float64)
    for row in range(DRAFTS + 1):
        same = VOCAB ** (DRAFTS - row)
        for table in (p, q):
            logits = 1.5 * torch.randn(VOCAB**row, VOCAB, generator=noise, dtype=torch.float64)
            table[row] = torch.softmax(logits, -1).repeat_interleave(same, 0)
    return p, q[:DRAFTS]


def all_chains(seed: int, grid: int, lengths: list[int] | None = None) -> tuple[Chain, Tensor]:
    """Every draft chain under every accept noise on a grid of cell middles, with the weight of each."""
    p, q = tables(seed)
    middles = (torch.arange(grid, dtype=torch.float64) + 0.5) / grid
    uniforms = torch.cartesian_prod(*[middles] * DRAFTS)
    chains = torch.tensor(list(itertools.product(range(VOCAB), repeat=DRAFTS)))
    pick = torch.arange(len(chains)).repeat_interleave(len(uniforms))
    weight = q.gather(2, chains.t().unsqueeze(2)).squeeze(2).prod(0)
    drafts = chains[pick]
    chain = Chain(
        p=p[:, pick].transpose(0, 1),
        q=q[:, pick].transpose(0, 1),
        drafts=drafts,
        uniforms=uniforms.repeat(len(chains), 1),
        bonus_uniform=torch.full((len(pick),), 0.5, dtype=torch.float64),
        lengths=torch.full((len(pick),), DRAFTS + 1) if lengths is None else torch.tensor(lengths)[pick],
    )
    return chain, weight[pick] / len(uniforms)


@pytest.mark.parametrize(("rule", "classic"), [(chain_rejection, True), (block_verification, False)])
def test_the_accepted_length_is_the_rules_own(rule: Rule, classic: bool) -> None:
    """Classic: products of sum min(p, q). Block: at least that, and the value of its defining recursion."""
    chain, weight = all_chains(5, grid=24)
    expected = float((rule(chain).counts * weight).sum())
    p, q = tables(5)
    classic_value, block_value = 1.0, 1.0
    for length in range(1, DRAFTS + 1):
        for drafts in itertools.product(range(VOCAB), repeat=length):
            index = int(np.ravel_multi_index((*drafts, *[0] * (DRAFTS - length)), (VOCAB,) * DRAFTS))
            drawn = [float(q[i, index, d]) for i, d in enumerate(drafts)]
            wanted = [float(p[i, index, d]) for i, d in enumerate(drafts)]
            worth = 1.0
            for have, want in zip(drawn, wanted, strict=True):
                worth = min(worth * want / have, 1.0)
            classic_value += float(np.prod([min(a, b) for a, b in zip(drawn, wanted, strict=True)]))
            block_value += float(np.prod(drawn)) * worth
    assert block_value > classic_value + 0.01
    assert expected == pytest.approx(classic_value if classic else block_value, abs=0.02)


@pytest.mark.parametrize("rule", RULES)
def test_rows_past_the_length_are_never_read(rule: Rule) -> None:
    chain, _ = all_chains(6, grid=3)
    lengths = torch.arange(len(chain.drafts)) % (DRAFTS + 1) + 1
    capped = Chain(**(vars(chain) | {"lengths": lengths}))
    past = torch.arange(DRAFTS + 1) >= lengths[:, None]
    spoiled = Chain(**(vars(capped) | {"p": torch.where(past[:, :, None], torch.nan, chain.p)}))
    want, got = rule(capped), rule(spoiled)
    assert torch.equal(want.counts, got.counts)
    assert torch.equal(want.tokens, got.tokens)
    assert (want.counts <= lengths).all()
    assert [int((want.counts == n).sum()) > 0 for n in range(1, DRAFTS + 2)] == [True] * (DRAFTS + 1)


@pytest.mark.parametrize("rule", RULES)
def test_a_request_decides_alone(rule: Rule) -> None:
    chain, _ = all_chains(7, grid=2)
    whole = rule(chain)
    for i in range(0, len(chain.drafts), 17):
        one = rule(Chain(**{key: value[i : i + 1] for key, value in vars(chain).items()}))
        assert int(one.counts) == int(whole.counts[i])
        assert torch.equal(one.tokens[0], whole.tokens[i])


def single(rule: Rule, p: list[float], q: list[float], draft: int, accept: float, bonus: float) -> list[int]:
    chain = Chain(
        p=torch.tensor([[p, p]], dtype=torch.float64),
        q=torch.tensor([[q]]),
        drafts=torch.tensor([[draft]]),
        uniforms=torch.tensor([[accept]], dtype=torch.float64),
        bonus_uniform=torch.tensor([bonus], dtype=torch.float64),
        lengths=torch.tensor([2]),
    )
    out = rule(chain)
    return out.tokens[0, : int(out.counts)].tolist()


@pytest.mark.parametrize("rule", RULES)
def test_edges(rule: Rule) -> None:
    assert single(rule, [0.0, 1.0], [1.0, 0.0], 0, 0.0, 0.5) == [1], "an impossible draft is refused at any noise"
    assert single(rule, [0.5, 0.5], [0.5, 0.5], 1, 0.999999, 0.1) == [1, 0], "an equal distribution accepts everything"
    assert single(rule, [0.5, 0.5], [0.5, 0.0], 1, 0.0, 0.9) == [1], "a draft with q = 0 is refused"
    assert single(rule, [0.3, 0.7], [float("nan")] * 2, 1, 0.0, 0.2) == [0], "q that is none: p is sampled"
    assert single(rule, [0.25, 0.75, 0.0], [0.25, 0.0, 0.75], 2, 0.0, 1.0) == [1], "u = 1 stays among what has mass"


@pytest.mark.parametrize("rule", RULES)
def test_a_refusal_without_residual_samples_the_target(rule: Rule) -> None:
    """Where q covers p up to rounding, the residual's mass says nothing."""
    p, q = [0.5, 0.5 - 1e-12, 1e-12], [0.5, 0.5, 0.0]
    assert single(rule, p, q, 1, 1.0, 0.1) == [0]
    assert single(rule, p, q, 1, 1.0, 0.9) == [1]
