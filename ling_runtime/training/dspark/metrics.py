"""What a step tells a reader: how likely drafts are to be accepted, how far runs go, how honest the confidence is."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ling_runtime.training.dspark.losses import accepted_rows

if TYPE_CHECKING:
    from ling_runtime.training.dspark.losses import Rows, Scores


class Metrics(NamedTuple):
    accept_rate: Tensor
    """Mean a_k of each row, [g]."""
    tau: Tensor
    """1 + expected accepted drafts of a block under rejection sampling."""
    greedy_tau: Tensor
    """1 + leading drafts whose argmax is the label."""
    confidence_error: Tensor
    """Mean of |c_k - a_k|."""
    confidence_bias: Tensor
    """Mean of c_k - a_k: positive where the head is too sure."""
    survival_bias: Tensor
    """The same for the products over rows 0..k, which the scheduler works with."""


@torch.no_grad()
def measure(scores: Scores, rows: Rows) -> Metrics:
    """Means over the valid rows, or over the blocks that have any."""
    valid = scores.valid
    blocks = valid.any(-1)
    hits = (scores.draft.argmax(-1) == scores.labels) & valid
    confidence = torch.sigmoid(scores.confidence)
    off = confidence - rows.accept
    survival_off = confidence.cumprod(-1) - rows.accept.cumprod(-1)
    return Metrics(
        accept_rate=(rows.accept * valid).flatten(0, -2).sum(0) / valid.flatten(0, -2).sum(0).clamp(min=1),
        tau=1 + _mean(accepted_rows(rows, valid, "mean"), blocks),
        greedy_tau=1 + _mean(hits.long().cumprod(-1).sum(-1), blocks),
        confidence_error=_mean(off.abs(), valid),
        confidence_bias=_mean(off, valid),
        survival_bias=_mean(survival_off, valid),
    )


def _mean(values: Tensor, where: Tensor) -> Tensor:
    return (values * where).sum() / where.sum().clamp(min=1)
