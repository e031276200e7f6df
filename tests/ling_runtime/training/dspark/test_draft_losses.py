"""Losses of draft training: slopes, the acceptance-length forms against exact values, and the counting of rows."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import pytest
import torch

from ling_runtime.speculation.dspark.rejection import Chain, chain_rejection
from ling_runtime.training.dspark.blocks import blocks_at, sample_blocks, step_noise, target_rows
from ling_runtime.training.dspark.losses import LossWeights, Rows, Scores, accepted_rows, losses, rows_of

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.training.dspark.losses import LengthForm

VOCABULARY, BLOCK = 8, 4
FORMS: tuple[LengthForm, ...] = ("mean", "path", "greedy")


def alone(count: Tensor) -> Tensor:
    return count


@pytest.fixture
def scores() -> Scores:
    draw = torch.Generator().manual_seed(0)
    draft, target = torch.randn(2, 3, BLOCK, VOCABULARY, generator=draw, dtype=torch.float64)
    labels = torch.randint(VOCABULARY, (3, BLOCK), generator=draw)
    valid = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]]).bool()
    confidence = torch.randn(3, BLOCK, generator=draw, dtype=torch.float64)
    return Scores(draft, target, labels, valid, confidence)


def total(scores: Scores, weights: LossWeights, length_weight: float = 0.7) -> Tensor:
    return losses(scores, rows_of(scores), weights, length_weight, alone).total


SWITCHES = {
    "cross_entropy": LossWeights(cross_entropy=1.0, l1=0.0, confidence=0.0),
    "l1": LossWeights(cross_entropy=0.0, l1=1.0, confidence=0.0),
    **{f: LossWeights(cross_entropy=0.0, l1=0.0, confidence=0.0, length=1.0, length_form=f) for f in FORMS},
}


@pytest.mark.parametrize("name", SWITCHES)
def test_slopes_of_each_loss_agree_with_finite_differences(scores: Scores, name: str) -> None:
    def loss(draft: Tensor) -> Tensor:
        return total(scores._replace(draft=draft), SWITCHES[name])

    assert torch.autograd.gradcheck(loss, (scores.draft.clone().requires_grad_(),))


def test_confidence_learns_the_acceptance_and_does_not_move_it(scores: Scores) -> None:
    weights = LossWeights(cross_entropy=0.0, l1=0.0, confidence=1.0)
    draft = scores.draft.clone().requires_grad_()
    moved = scores._replace(draft=draft, confidence=scores.confidence.clone().requires_grad_())
    torch.autograd.backward(total(moved, weights))
    assert draft.grad is None
    assert torch.autograd.gradcheck(
        lambda logits: total(scores._replace(confidence=logits), weights), (scores.confidence.clone().requires_grad_(),)
    )


def test_terms_are_what_the_definitions_say(scores: Scores) -> None:
    weights = LossWeights(decay=3.0)
    result = losses(scores, rows_of(scores), weights, 0.0, alone)
    q, p = scores.draft.softmax(-1), scores.target.softmax(-1)
    sums = dict.fromkeys(("weight", "cross_entropy", "l1", "confidence"), 0.0)
    for b, k in zip(*scores.valid.nonzero(as_tuple=True), strict=True):
        w, overlap = math.exp(-int(k) / 3.0), torch.minimum(p[b, k], q[b, k]).sum()
        c = torch.sigmoid(scores.confidence[b, k])
        sums["weight"] += w
        sums["cross_entropy"] -= w * q[b, k, scores.labels[b, k]].log().item()
        sums["l1"] += w * (p[b, k] - q[b, k]).abs().sum().item()
        sums["confidence"] -= w * (overlap * c.log() + (1 - overlap) * (1 - c).log()).item()
    for name in ("cross_entropy", "l1", "confidence"):
        assert getattr(result, name).item() == pytest.approx(sums[name] / (sums["weight"] + 1e-6), rel=1e-9)
    expected = 0.1 * result.cross_entropy + 0.9 * result.l1 + result.confidence
    assert result.total.item() == pytest.approx(expected.item())


def test_rows_that_do_not_count_change_nothing(scores: Scores) -> None:
    noise = torch.randn_like(scores.draft) * ~scores.valid[..., None]
    weights = LossWeights(length=1.0, length_form="path")
    assert total(scores._replace(draft=scores.draft + noise), weights) == total(scores, weights)


def test_a_ramp_brings_the_length_in() -> None:
    weights = LossWeights(length=0.4, ramp=0.2)
    assert [weights.length_at(x) for x in (0.0, 0.1, 0.2, 1.0)] == pytest.approx([0.0, 0.2, 0.4, 0.4])


# ---------------------------------------------------------------------------------------------------------------------
# The acceptance length itself

SYMBOLS, ROWS = 3, 3


@pytest.fixture
def tables() -> tuple[dict[tuple[int, ...], Tensor], dict[tuple[int, ...], Tensor]]:
    """p and q after every prefix, each prefix with distributions of its own."""
    draw = torch.Generator().manual_seed(4)
    prefixes = [x for n in range(ROWS) for x in itertools.product(range(SYMBOLS), repeat=n)]
    noise = torch.randn(2, len(prefixes), SYMBOLS, generator=draw, dtype=torch.float64)
    p, q = (1.5 * noise).softmax(-1)
    return dict(zip(prefixes, p, strict=True)), dict(zip(prefixes, q, strict=True))


def true_length(p: dict[tuple[int, ...], Tensor], q: dict[tuple[int, ...], Tensor]) -> float:
    """1 + the sum of the chances that the first k drafts are accepted, each the mass of the smaller of p and q."""
    chance = 0.0
    for n in range(1, ROWS + 1):
        for x in itertools.product(range(SYMBOLS), repeat=n):
            chance += math.prod(min(p[x[:i]][x[i]], q[x[:i]][x[i]]).item() for i in range(n))
    return 1 + chance


def along(x: tuple[int, ...], p: dict[tuple[int, ...], Tensor], q: dict[tuple[int, ...], Tensor]) -> Rows:
    prefixes = [x[:i] for i in range(ROWS)]
    draft, target = torch.stack([q[y] for y in prefixes]).log(), torch.stack([p[y] for y in prefixes]).log()
    valid = torch.ones(ROWS, dtype=torch.bool)
    return rows_of(Scores(draft, target, torch.tensor(x), valid, torch.zeros(ROWS)))


def expected(form: LengthForm, p: dict[tuple[int, ...], Tensor], q: dict[tuple[int, ...], Tensor]) -> float:
    """The form's mean over texts that the target writes."""
    mean, valid = 0.0, torch.ones(ROWS, dtype=torch.bool)
    for x in itertools.product(range(SYMBOLS), repeat=ROWS):
        chance = math.prod(p[x[:i]][x[i]].item() for i in range(ROWS))
        mean += chance * (1 + accepted_rows(along(x, p, q), valid, form).item())
    return mean


def test_path_form_is_unbiased_and_mean_form_is_not(
    tables: tuple[dict[tuple[int, ...], Tensor], dict[tuple[int, ...], Tensor]],
) -> None:
    true = true_length(*tables)
    assert expected("path", *tables) == pytest.approx(true, abs=1e-12)
    assert abs(expected("mean", *tables) - true) > 0.005


def test_path_form_agrees_with_the_verifier_itself(
    tables: tuple[dict[tuple[int, ...], Tensor], dict[tuple[int, ...], Tensor]],
) -> None:
    p, q = tables
    draw, count = torch.Generator().manual_seed(9), 20_000
    drafts = torch.zeros(count, ROWS, dtype=torch.long)
    seen: list[list[Tensor]] = [[], []]
    for k in range(ROWS):
        prefixes = list(map(tuple, drafts[:, :k].tolist()))
        rows = [torch.stack([table[x] for x in prefixes]) for table in (p, q)]
        seen[0].append(rows[0])
        seen[1].append(rows[1])
        drafts[:, k] = torch.multinomial(rows[1], 1, generator=draw)[:, 0]
    after = torch.full((count, SYMBOLS), 1 / SYMBOLS, dtype=torch.float64)
    uniforms = torch.rand(count, ROWS + 1, generator=draw, dtype=torch.float64)
    chain = Chain(
        p=torch.stack([*seen[0], after], 1),
        q=torch.stack(seen[1], 1),
        drafts=drafts,
        uniforms=uniforms[:, :ROWS],
        bonus_uniform=uniforms[:, ROWS],
        lengths=torch.full((count,), ROWS + 1),
    )
    counts = chain_rejection(chain).counts.double()
    assert abs(counts.mean() - expected("path", p, q)) < 4 * counts.std() / count**0.5


def test_greedy_form_is_the_path_form_of_a_certain_target() -> None:
    draft = torch.randn(5, BLOCK, VOCABULARY, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    labels = draft.argmin(-1)
    target = 1e4 * torch.nn.functional.one_hot(labels, VOCABULARY).double()
    valid = torch.ones(5, BLOCK, dtype=torch.bool)
    rows = rows_of(Scores(draft, target, labels, valid, torch.zeros(5, BLOCK)))
    path, greedy = (accepted_rows(rows, valid, form) for form in ("path", "greedy"))
    assert torch.allclose(path, greedy, atol=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_following_the_length_loss_lengthens_runs(scores: Scores, form: LengthForm) -> None:
    """One small step on the loss alone raises tau, and early rows get the larger part of the push."""
    draft = scores.draft.clone().requires_grad_()
    moved = scores._replace(draft=draft)
    valid = torch.ones_like(scores.valid)
    moved = moved._replace(valid=valid, target=moved.target * 0)
    tau = accepted_rows(rows_of(moved), valid, form).mean()
    (slope,) = torch.autograd.grad(total(moved, SWITCHES[form]), draft)
    better = rows_of(moved._replace(draft=draft - 0.05 * slope / slope.norm()))
    assert accepted_rows(better, valid, form).mean() > tau
    sizes = slope.norm(dim=-1).mean(0)
    assert sizes[0] > sizes[-1]


# ---------------------------------------------------------------------------------------------------------------------
# Blocks


def test_blocks_start_and_end_inside_the_target_s_own_text() -> None:
    ids = torch.arange(40).view(2, 20)
    own = torch.zeros(2, 20, dtype=torch.bool)
    own[0, 5:15], own[1, 18:] = True, True
    blocks = sample_blocks(ids, own, step_noise(0, 0, (2, 20), ids.device), 12, BLOCK)
    kept = blocks.valid[0].any(-1)
    assert sorted(blocks.anchors[0][kept].tolist()) == list(range(5, 14))
    assert blocks.valid[1].any(-1).sum() == 1
    assert not blocks.anchors[0][~kept].any()
    for anchor, valid, labels in zip(
        blocks.anchors[0][kept], blocks.valid[0][kept], blocks.labels[0][kept], strict=True
    ):
        length = min(BLOCK, 14 - int(anchor))
        assert valid.tolist() == [True] * length + [False] * (BLOCK - length)
        assert labels[:length].tolist() == list(range(int(anchor) + 1, int(anchor) + 1 + length))
    assert torch.equal(blocks.previous[..., 1:], blocks.labels[..., :-1])


def test_anchors_depend_on_seed_and_step_alone() -> None:
    shape, cpu = (3, 50), torch.device("cpu")
    first = step_noise(1, 7, shape, cpu)
    torch.rand(3)
    assert torch.equal(step_noise(1, 7, shape, cpu), first)
    assert not torch.equal(step_noise(1, 8, shape, cpu), first)
    assert not torch.equal(step_noise(2, 7, shape, cpu), first)


def test_a_label_is_scored_by_the_row_before_it() -> None:
    final = torch.arange(10.0).view(1, 10, 1)
    ids, anchors = torch.zeros(1, 10, dtype=torch.long), torch.tensor([[2, 5]])
    blocks = blocks_at(ids, torch.ones(1, 10).bool(), anchors, torch.ones(1, 2).bool(), BLOCK)
    assert target_rows(final, blocks)[..., 0].tolist() == [[[2, 3, 4, 5], [5, 6, 7, 8]]]
