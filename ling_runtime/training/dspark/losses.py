"""What a draft is trained towards: the target's distribution row by row, its own confidence, and long accepted runs.

Row losses are weighted by exp(-k / decay). The acceptance-length loss needs no such hand-set weight: tau = 1 + the sum
over k of S_k, the chance that rows 0..k are all accepted, whose gradient favours early rows by itself. It comes in
three forms. `mean` takes a_k = sum_v min(p, q) of every row as independent. `path` is unbiased for sampled serving: the
true expectation runs over accepted prefixes, and E_{x~q}[min(1, p/q) f] = E_{x~p}[min(1, q/p) f] lets the target's own
tokens stand for them, if they were drawn at the temperature of p. `greedy` takes the chance that a draft drawn from q
repeats the labels, which is what `path` becomes when p puts all weight on them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

LengthForm = Literal["mean", "path", "greedy"]
_LEAST = 1e-4
_LOG_RATIO_FLOOR = -20.0


@dataclass(frozen=True, kw_only=True)
class LossWeights:
    """Weight of each term; zero switches it off."""

    cross_entropy: float = 0.1
    l1: float = 0.9
    confidence: float = 1.0
    length: float = 0.0
    """Weight of the acceptance-length loss after its ramp."""
    length_form: LengthForm = "mean"
    ramp: float = 0.15
    """Share of the steps over which the weight of the length rises from zero."""
    decay: float = 4.0
    """Rows over which the weight of a row falls by e."""

    def length_at(self, progress: float) -> float:
        """Weight of the length when `progress` (0..1) of the run is done."""
        return self.length * min(1.0, progress / self.ramp) if self.ramp else self.length


class Scores(NamedTuple):
    """Everything the losses read, for blocks [..., g] under teacher forcing."""

    draft: Tensor
    """Step logits Z of the draft, [..., g, V]."""
    target: Tensor
    """The target's logits for the same tokens, [..., g, V]."""
    labels: Tensor
    valid: Tensor
    confidence: Tensor
    """Logits of the confidence head, [..., g]."""


class Rows(NamedTuple):
    """What each draft row amounts to, [..., g]."""

    cross_entropy: Tensor
    l1: Tensor
    accept: Tensor
    """a_k = 1 - l1 / 2 = sum_v min(p, q): the chance of acceptance after an accepted prefix."""
    log_ratio: Tensor
    """log min(1, q / p) of the label."""


class Losses(NamedTuple):
    total: Tensor
    cross_entropy: Tensor
    l1: Tensor
    confidence: Tensor
    length: Tensor


def rows_of(scores: Scores) -> Rows:
    log_q, log_p = scores.draft.log_softmax(-1), scores.target.log_softmax(-1)
    l1 = (log_q.exp() - log_p.exp()).abs().sum(-1)
    of_label = scores.labels[..., None]
    label_q, label_p = log_q.gather(-1, of_label)[..., 0], log_p.gather(-1, of_label)[..., 0]
    ratio = (label_q - label_p).clamp(_LOG_RATIO_FLOOR, 0.0)
    return Rows(-label_q, l1, (1 - 0.5 * l1).clamp(0.0, 1.0), ratio)


def accepted_rows(rows: Rows, valid: Tensor, form: LengthForm) -> Tensor:
    """tau - 1 of each block: the expected number of accepted drafts, [...]."""
    log_accept = rows.accept.clamp(min=_LEAST).log()
    if form == "mean":
        survival = log_accept.cumsum(-1).exp()
    elif form == "path":
        reached = rows.log_ratio.cumsum(-1) - rows.log_ratio
        survival = reached.exp() * rows.accept
    else:
        survival = (-rows.cross_entropy.cumsum(-1)).exp()
    return (survival * valid).sum(-1)


def losses(
    scores: Scores, rows: Rows, weights: LossWeights, length_weight: Tensor | float, summed: Callable[[Tensor], Tensor]
) -> Losses:
    """Each term divided by its number of rows on all ranks: `summed` adds a count over them; add losses likewise."""
    valid = scores.valid.to(rows.l1.dtype)
    decay = torch.arange(valid.shape[-1], device=valid.device, dtype=valid.dtype).div(-weights.decay).exp()
    share = valid * decay / (summed((valid * decay).sum()) + 1e-6)
    agree = F.binary_cross_entropy_with_logits(scores.confidence, rows.accept.detach(), reduction="none")
    terms = [(share * term).sum() for term in (rows.cross_entropy, rows.l1, agree)]
    length = length_loss(rows, scores.valid, weights.length_form, summed)
    scales = (weights.cross_entropy, weights.l1, weights.confidence)
    total = sum((w * term for w, term in zip(scales, terms, strict=True) if w), start=torch.zeros_like(length))
    if weights.length:
        total = total + length_weight * length
    return Losses(total, *(term.detach() for term in (*terms, length)))


def length_loss(rows: Rows, valid: Tensor, form: LengthForm, summed: Callable[[Tensor], Tensor]) -> Tensor:
    """1 - (tau - 1) / g over each block's valid rows, as the mean of the blocks that have any."""
    count = valid.sum(-1)
    used = (count > 0).to(rows.l1.dtype)
    missed = 1 - accepted_rows(rows, valid, form) / count.clamp(min=1)
    return (missed * used).sum() / summed(used.sum()).clamp(min=1)


def default_decay(block_size: int) -> float:
    """The published 4.0 for blocks of 7, in proportion."""
    return math.ceil(block_size * 40 / 7) / 10
