"""Tokens from block drafts follow the target exactly, for every rule, Markov head and verify mode."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from ling_runtime.memory.window import Window
from ling_runtime.speculation import verification
from ling_runtime.speculation.dspark import proposer, rejection
from ling_runtime.speculation.dspark.planner import GlobalPlanner
from ling_runtime.speculation.dspark.proposer import DsparkProposer
from ling_runtime.speculation.noise import Stream, uniform
from tests.ling_runtime.speculation.dspark.toy import COST, DRAFTS, START, VOCAB, Server, Texts, Toy, check
from tests.ling_runtime.speculation.exact import SUSPICIOUS, p_value, sampling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from ling_runtime.executor.interface import RowSampling
    from ling_runtime.speculation.interface import Proposal

pytestmark = pytest.mark.whole

RULES = ("classic", "block")
HEADS = ("vanilla", "gated", "rnn")
MODES = ("static", "cap-accept", "compact")
EVERY = list(itertools.product(RULES, HEADS, MODES))
QUICK = [
    ("classic", "vanilla", "static"),
    ("block", "gated", "static"),
    ("classic", "rnn", "compact"),
    ("block", "vanilla", "compact"),
]
WISHES = [{}, {"temperature": 0.7, "top_p": 0.95}]


@pytest.mark.parametrize("changes", WISHES, ids=str)
@pytest.mark.parametrize(("rule", "head", "mode"), QUICK)
def test_continuations_follow_the_target(rule: str, head: str, mode: str, changes: dict[str, float]) -> None:
    assert check(Server(Toy.random(5, head), rule, mode), changes, samples=1000) > SUSPICIOUS


@pytest.mark.slow
@pytest.mark.parametrize("changes", [*WISHES, {"top_k": 3, "temperature": 1.5}, {"min_p": 0.1}], ids=str)
@pytest.mark.parametrize(("rule", "head", "mode"), EVERY)
def test_many_continuations_follow_the_target(rule: str, head: str, mode: str, changes: dict[str, float]) -> None:
    assert check(Server(Toy.random(6, head), rule, mode), changes, samples=20000) > SUSPICIOUS


@pytest.mark.parametrize("rule", RULES)
def test_the_global_planner_is_exact_too(rule: str) -> None:
    server = Server(Toy.random(5, "vanilla"), rule, "compact", planner=lambda: GlobalPlanner(COST))
    assert check(server, {}, samples=1500) > SUSPICIOUS
    assert min(np.bincount(server.lengths)[1:]) > 50


@pytest.mark.parametrize("rule", RULES)
def test_everything_happens_in_these_tests(rule: str) -> None:
    """Otherwise they would say nothing about it: all lengths are planned, drafts are accepted and refused."""
    server = Server(Toy.random(5, "vanilla"), rule, "compact")
    server.answers([sampling(seed=seed) for seed in range(400)])
    assert min(np.bincount(server.lengths)[1:]) > 20
    assert min(np.bincount(server.counts)[1:]) > 20
    assert sum(n < length for n, length in zip(server.counts, server.lengths, strict=True)) > 50


@pytest.mark.parametrize("rule", RULES)
def test_a_cap_gives_the_tokens_of_rows_that_were_never_computed(rule: str) -> None:
    wishes = [sampling(seed=seed, temperature=0.0 if seed % 5 == 0 else 0.8) for seed in range(300)]
    capped, compact = (Server(Toy.random(7, "rnn"), rule, mode) for mode in ("cap-accept", "compact"))
    assert capped.answers(wishes) == compact.answers(wishes)
    assert capped.lengths == compact.lengths


def drawn(toy: Toy, wishes: Sequence[RowSampling]) -> Proposal:
    """Drafts of as many requests, all after the same two tokens."""
    requests = len(wishes)
    window = Window(slots=tuple(range(1, requests + 1)), starts=(1,) * requests, rows=DRAFTS + 1)
    texts = Texts([[START[0], 3]] * requests)
    drawing = DsparkProposer(toy, toy, texts, steps=DRAFTS)  # type: ignore[arg-type]
    return drawing.propose(window, torch.full((requests,), 3), wishes)


def test_drafts_are_drawn_at_the_temperature_of_their_request() -> None:
    """Output would be exact at another temperature too, and refused more often."""
    each = 1000
    wishes = [sampling(seed=seed, temperature=t) for t in (0.5, 2.0) for seed in range(each)]
    proposal = drawn(Toy.random(5, "vanilla"), wishes)
    assert proposal.probabilities is not None
    narrow, wide = proposal.probabilities[0, 0], proposal.probabilities[each, 0]
    torch.testing.assert_close(narrow, wide**4 / (wide**4).sum())
    for first, q in ((0, narrow), (each, wide)):
        counts = np.bincount(proposal.drafts[first : first + each, 0], minlength=VOCAB).astype(float)
        assert p_value(counts, q.numpy()) > SUSPICIOUS


def test_a_confidence_does_not_know_the_draft_it_speaks_of() -> None:
    """Or whether a draft is verified would depend on what it is."""
    proposal = drawn(Toy.random(5, "vanilla"), [sampling(seed=seed) for seed in range(200)])
    assert proposal.confidence is not None
    assert len(proposal.drafts[:, 0].unique()) > 3
    assert len(proposal.confidence[:, 0].unique()) == 1
    said = {(int(draft), float(c)) for draft, c in zip(proposal.drafts[:, 0], proposal.confidence[:, 1], strict=True)}
    assert len(said) == len(proposal.drafts[:, 0].unique()) == len({c for _, c in said})


# Planted faults -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rule", "mode"), list(itertools.product(RULES, MODES)))
def test_a_wrong_residual_is_caught(rule: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused draft's place is drawn from the target, which may give the draft again."""
    monkeypatch.setattr(rejection, "LEAST_MASS", 2.0)
    assert check(Server(Toy.random(5, "vanilla"), rule, mode), {}, samples=1500) < SUSPICIOUS


def test_a_residual_without_the_worth_of_its_prefix_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = rejection._completed
    monkeypatch.setattr(rejection, "_completed", lambda chain, n, worth: right(chain, n, torch.ones_like(worth)))
    assert check(Server(Toy.random(5, "vanilla"), "block", "static"), {}, samples=12000) < SUSPICIOUS


def test_noise_that_decides_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keyed by the position of a token instead of its window's anchor; block verification reads past a refusal."""

    def by_position(seeds: Tensor, starts: Tensor, numbers: int, stream: Stream = Stream.TARGET) -> Tensor:
        if stream not in (Stream.DRAFT, Stream.ACCEPT):
            return uniform(seeds, starts, numbers, stream)
        each = numbers // DRAFTS
        return torch.cat([uniform(seeds, starts + 1 + k, each, stream) for k in range(DRAFTS)], dim=1)

    monkeypatch.setattr(verification, "uniform", by_position)
    monkeypatch.setattr(proposer, "uniform", by_position)
    assert check(Server(Toy.random(5, "vanilla"), "classic", "static"), {}, samples=1500) > SUSPICIOUS
    assert check(Server(Toy.random(5, "vanilla"), "block", "static"), {}, samples=20000) < SUSPICIOUS
