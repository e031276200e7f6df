"""Acceptance and sampling as pure functions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ling_runtime.speculation.acceptance import correct_drafts, last_accepted
from ling_runtime.speculation.noise import Stream, uniform
from ling_runtime.speculation.sampling import choose, probabilities, token_logprob
from tests.ling_runtime.speculation.exact import filtered, sampling

VOCAB = 8


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=8))
def test_correct_drafts_is_the_leading_run(pairs: list[tuple[int, int]]) -> None:
    drafts = torch.tensor([[d for d, _ in pairs]])
    choices = torch.tensor([[c for _, c in pairs] + [0]])
    expected = next((i for i, (d, c) in enumerate(pairs) if d != c), len(pairs))
    assert correct_drafts(drafts, choices).tolist() == [expected]


def test_last_accepted_never_reads_past_the_prefix() -> None:
    rows = torch.arange(12.0).view(2, 6)
    assert last_accepted(rows, torch.tensor([1, 6])).tolist() == [0.0, 11.0]


def test_greedy_ties_go_to_the_lowest_id() -> None:
    assert choose(torch.tensor([[1.0, 3.0, 3.0]]), [sampling(temperature=0.0)], torch.tensor([4])).tolist() == [1]


def test_noise_is_uniform_and_independent_of_everything_but_its_key() -> None:
    block = uniform(torch.full((50,), 3), torch.arange(50), 1000).flatten().numpy()
    assert stats.kstest(block, "uniform").pvalue > 1e-4
    assert abs(np.corrcoef(block[:-1], block[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(block[:-1000], block[1000:])[0, 1]) < 0.02
    seeds, positions = torch.tensor([3, 4]), torch.tensor([7, 7])
    three, four = uniform(seeds, positions, 10)
    assert torch.equal(three, uniform(seeds[:1], positions[:1], 1000)[0, :10])
    assert not torch.equal(three, four)


def test_streams_of_one_key_are_independent() -> None:
    seeds, positions = torch.arange(50), torch.arange(50) + 100
    draws = [uniform(seeds, positions, 400, stream).flatten().numpy() for stream in Stream]
    assert np.abs(np.corrcoef(draws) - np.eye(len(Stream))).max() < 0.03


@given(st.integers(0, 2**32), st.lists(st.integers(0, 4), min_size=1, max_size=9))
@settings(max_examples=30, deadline=None)
def test_a_row_is_sampled_as_if_it_were_alone(seed: int, kinds: list[int]) -> None:
    wishes = [
        sampling(temperature=0.0),
        sampling(seed=2**63 - 1),
        sampling(temperature=0.6, top_p=0.8, seed=5),
        sampling(top_k=4, seed=6),
        sampling(temperature=1.7, min_p=0.1, top_p=0.9, top_k=30, seed=-7),
    ]
    rows = [wishes[kind] for kind in kinds]
    logits = 3 * torch.randn(len(rows), 37, generator=torch.Generator().manual_seed(seed))
    positions = torch.arange(len(rows)) + 11
    p, tokens = probabilities(logits, rows), choose(logits, rows, positions)
    for i, one in enumerate(rows):
        assert torch.equal(p[i : i + 1], probabilities(logits[i : i + 1], [one]))
        assert tokens[i : i + 1].tolist() == choose(logits[i : i + 1], [one], positions[i : i + 1]).tolist()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"top_k": 3},
        {"top_p": 0.7},
        {"min_p": 0.2},
        {"top_k": 5, "top_p": 0.9, "min_p": 0.05, "temperature": 1.3},
    ],
    ids=str,
)
def test_samples_follow_the_filtered_distribution(changes: dict[str, float]) -> None:
    logits = torch.tensor([0.3, -1.0, 2.0, 1.1, 0.0, 1.9, -3.0, 0.7])
    want = filtered(logits.double().numpy(), sampling(**changes))
    p = probabilities(logits.unsqueeze(0), [sampling(**changes)])
    np.testing.assert_allclose(p[0].numpy(), want, atol=1e-12)
    draws = choose(logits.expand(4000, -1), [sampling(**changes)] * 4000, torch.arange(4000)).numpy()
    counts = np.bincount(draws, minlength=VOCAB)
    assert counts[want == 0].sum() == 0
    assert stats.chisquare(counts[want > 0], 4000 * want[want > 0]).pvalue > 1e-4


def test_logprobs_have_alternatives_best_first() -> None:
    logits = torch.tensor([0.0, 2.0, 1.0])
    scored = token_logprob(logits, 0, 2)
    want = torch.log_softmax(logits, -1)
    assert scored.logprob == pytest.approx(float(want[0]))
    assert scored.top == ((pytest.approx(float(want[1])), 1), (pytest.approx(float(want[2])), 2))
