"""Sampled continuations follow the target exactly, with and without drafts; and the test that says so has teeth.

Vocabulary of 8, joint frequencies of three tokens against exact probabilities. A target is a table: its logits depend
on the two tokens before. Drafts come greedily from a perturbed copy, as from a NEXTN layer.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from ling_runtime.speculation.acceptance import correct_drafts
from ling_runtime.speculation.sampling import choose, log_probabilities
from tests.ling_runtime.speculation.exact import SUSPICIOUS, count, joint, p_value, sampling

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from ling_runtime.executor.interface import RowSampling

    Verify = Callable[[Tensor, Tensor, Sequence[RowSampling], Tensor], list[list[int]]]
    """Drafts [B, S], target logits [B, S + 1, V], samplings [B], positions [B, S + 1] -> tokens of each request."""

VOCAB, LENGTH = 8, 3
START = 8
"""What stands before the first token."""

CONFIGURATIONS: list[dict[str, float]] = [
    {},
    {"temperature": 0.3},
    {"temperature": 0.7},
    {"temperature": 1.5},
    {"temperature": 4.0},
    {"top_p": 0.5},
    {"top_p": 0.8},
    {"top_p": 0.95},
    {"top_k": 1},
    {"top_k": 2},
    {"top_k": 5},
    {"min_p": 0.05},
    {"min_p": 0.3},
    {"temperature": 0.6, "top_p": 0.9},
    {"temperature": 2.0, "top_k": 4},
    {"temperature": 1.3, "min_p": 0.1},
    {"top_p": 0.7, "top_k": 3},
    {"top_k": 6, "min_p": 0.02},
    {"top_p": 0.9, "min_p": 0.1},
    {"temperature": 0.8, "top_p": 0.95, "top_k": 6, "min_p": 0.05},
]


@dataclasses.dataclass(frozen=True)
class Chain:
    """Logits of target and draft by the two tokens before, [9, 9, 8] each."""

    target: Tensor
    draft: Tensor

    @classmethod
    def random(cls, seed: int) -> Chain:
        noise = torch.Generator().manual_seed(seed)
        target = 1.5 * torch.randn(VOCAB + 1, VOCAB + 1, VOCAB, generator=noise)
        return cls(target, target + 1.5 * torch.randn(target.shape, generator=noise))

    def logits(self, prefix: tuple[int, ...]) -> np.ndarray:
        before = (START, START, *prefix)[-2:]
        return self.target[before].double().numpy()

    def continue_all(self, samplings: Sequence[RowSampling], steps: int, verify: Verify) -> list[list[int]]:
        """At least LENGTH tokens for each request, in steps that verify `steps` drafts."""
        texts = [[START, START] for _ in samplings]
        while running := [i for i, text in enumerate(texts) if len(text) < 2 + LENGTH]:
            drafts, rows = self._window([texts[i] for i in running], steps)
            positions = torch.tensor([range(len(texts[i]), len(texts[i]) + steps + 1) for i in running])
            emitted = verify(drafts, rows, [samplings[i] for i in running], positions)
            for i, tokens in zip(running, emitted, strict=True):
                texts[i] += tokens
        return [text[2:] for text in texts]

    def _window(self, texts: list[list[int]], steps: int) -> tuple[Tensor, Tensor]:
        """Greedy drafts [B, S] and the target's logits at every row of the window [B, S + 1, V]."""
        before = torch.tensor([text[-2:] for text in texts])
        for _ in range(steps):
            draft = self.draft[before[:, -2], before[:, -1]].argmax(dim=-1)
            before = torch.cat([before, draft[:, None]], dim=1)
        return before[:, 2:], self.target[before[:, :-1], before[:, 1:]]


def verified(drafts: Tensor, rows: Tensor, samplings: Sequence[RowSampling], positions: Tensor) -> list[list[int]]:
    """What the executor does with a window."""
    choices = choices_of(rows, samplings, positions)
    accepted = correct_drafts(drafts, choices) + 1
    return [tokens[:n] for tokens, n in zip(choices.tolist(), accepted.tolist(), strict=True)]


def choices_of(rows: Tensor, samplings: Sequence[RowSampling], positions: Tensor) -> Tensor:
    each = [one for one in samplings for _ in range(rows.shape[1])]
    return choose(rows.flatten(0, 1), each, positions.flatten()).view(rows.shape[:2])


def check(verify: Verify, changes: dict[str, float], *, steps: int, samples: int, chain: int = 5) -> float:
    """The p-value of `samples` continuations, one seed each."""
    model, one = Chain.random(chain), sampling(**changes)
    seeded = [dataclasses.replace(one, seed=seed) for seed in range(samples)]
    counts = count(model.continue_all(seeded, steps, verify), VOCAB, LENGTH)
    return p_value(counts, joint(model.logits, one, VOCAB, LENGTH))


@pytest.mark.parametrize("changes", CONFIGURATIONS, ids=str)
@pytest.mark.parametrize("steps", [0, 2], ids=["plain", "drafts"])
def test_continuations_follow_the_target(changes: dict[str, float], steps: int) -> None:
    assert check(verified, changes, steps=steps, samples=600) > SUSPICIOUS


@pytest.mark.slow
@pytest.mark.parametrize("changes", CONFIGURATIONS, ids=str)
@pytest.mark.parametrize("steps", [0, 1, 3], ids=["plain", "one", "three"])
def test_many_continuations_follow_the_target(changes: dict[str, float], steps: int) -> None:
    assert check(verified, changes, steps=steps, samples=6000, chain=6) > SUSPICIOUS


def test_drafts_are_accepted_and_rejected_in_these_tests() -> None:
    """Otherwise they would say nothing about either."""
    lengths = []

    def noted(*window: object) -> list[list[int]]:
        emitted = verified(*window)  # type: ignore[arg-type]
        lengths.extend(len(tokens) for tokens in emitted)
        return emitted

    check(noted, {}, steps=2, samples=200)
    assert min(np.bincount(lengths)[1:]) > 20


# Planted faults, each with the signature of `verified` ----------------------------------------------------------------


def every_draft_accepted(drafts: Tensor, rows: Tensor, samplings: Sequence[RowSampling], at: Tensor) -> list[list[int]]:
    choices = choices_of(rows, samplings, at)
    return torch.cat([drafts, choices[:, -1:]], dim=1).tolist()


def drafts_accepted_where_possible(
    drafts: Tensor, rows: Tensor, samplings: Sequence[RowSampling], at: Tensor
) -> list[list[int]]:
    """A draft passes when it is merely among the tokens that the filters keep."""
    choices, emitted = choices_of(rows, samplings, at), []
    for row, draft, choice, one in zip(rows, drafts.tolist(), choices.tolist(), samplings, strict=True):
        possible = log_probabilities(row, [one] * len(row)) > -torch.inf
        kept = [bool(possible[i, token]) for i, token in enumerate(draft)]
        n = kept.index(False) if False in kept else len(kept)
        emitted.append([*draft[:n], choice[n]])
    return emitted


def rejected_without_noise(
    drafts: Tensor, rows: Tensor, samplings: Sequence[RowSampling], at: Tensor
) -> list[list[int]]:
    """The token in a rejected draft's place is the best one instead of the sampled one."""
    emitted = verified(drafts, rows, samplings, at)
    for i, tokens in enumerate(emitted):
        if len(tokens) <= drafts.shape[1]:
            tokens[-1] = int(rows[i, len(tokens) - 1].argmax())
    return emitted


def rejected_from_the_whole(
    drafts: Tensor, rows: Tensor, samplings: Sequence[RowSampling], at: Tensor
) -> list[list[int]]:
    """The wrong residual: a rejected draft's place is drawn anew from the target, which may give the draft again."""
    emitted = verified(drafts, rows, samplings, at)
    again = choices_of(rows, [dataclasses.replace(one, seed=one.seed + 10**6) for one in samplings], at).tolist()
    for i, tokens in enumerate(emitted):
        if len(tokens) <= drafts.shape[1]:
            tokens[-1] = again[i][len(tokens) - 1]
    return emitted


def one_more_accepted(drafts: Tensor, rows: Tensor, samplings: Sequence[RowSampling], at: Tensor) -> list[list[int]]:
    """The row after a rejected draft counts too, although it was computed behind the wrong token."""
    choices = choices_of(rows, samplings, at)
    accepted = (correct_drafts(drafts, choices) + 2).clamp(max=choices.shape[1])
    return [tokens[:n] for tokens, n in zip(choices.tolist(), accepted.tolist(), strict=True)]


def one_noise_for_the_window(
    drafts: Tensor, rows: Tensor, samplings: Sequence[RowSampling], at: Tensor
) -> list[list[int]]:
    """Each token is right by itself; they are just not independent."""
    return verified(drafts, rows, samplings, at[:, :1].expand_as(at))


FAULTS = [
    every_draft_accepted,
    drafts_accepted_where_possible,
    rejected_without_noise,
    rejected_from_the_whole,
    one_more_accepted,
    one_noise_for_the_window,
]


@pytest.mark.parametrize("changes", [{}, {"temperature": 0.7, "top_p": 0.95}], ids=str)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_caught(fault: Verify, changes: dict[str, float]) -> None:
    assert check(fault, changes, steps=2, samples=800) < SUSPICIOUS
