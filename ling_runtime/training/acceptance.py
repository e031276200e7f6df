"""Accept length of the draft layer on trajectories the target has already taken.

A greedy trajectory fixes what every verification would accept: a draft counts while it equals the trajectory's next
token. So one teacher-forced pass gives all drafts of all bases, and walking them afterwards costs nothing. The count is
the server's own: tokens after the first, over verification steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ling_runtime.training import dense, draft

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ling_runtime.config import ModelConfig
    from ling_runtime.training.layers import Params


@dataclass(frozen=True)
class Span:
    """Generated part of one row: tokens start <= t < end, the first of which the prefill produced."""

    start: int
    end: int


@torch.inference_mode()
def accepted_runs(params: Params, config: ModelConfig, ids: Tensor, depth: int, rows: int = 32) -> Tensor:
    """How many drafts of each base the trajectory confirms, [B, T - depth - 1] int64; `rows` sequences at a time."""
    runs = []
    for part in ids.split(rows):
        bases = part.shape[1] - depth - 1
        hidden = dense.forward(params, config, part).hidden[:, :bases]
        drafts = draft.chain(params, config, hidden, part[:, :-1], depth)
        hits = [
            dense.logits(params, guess.hidden).argmax(-1) == part[:, d + 1 : d + 1 + bases]
            for d, guess in enumerate(drafts, 1)
        ]
        runs.append(torch.stack(hits).long().cumprod(0).sum(0))
    return torch.cat(runs)


def accept_length(runs: Tensor, spans: Sequence[Span], depth: int) -> float:
    """Tokens per verification step over all spans, for chains of at most `depth` drafts."""
    tokens = steps = 0
    for row, span in zip(runs.clamp(max=depth).tolist(), spans, strict=True):
        length = span.start
        while length < span.end - 1 and length - 1 < len(row):
            gained = min(row[length - 1] + 1, span.end - 1 - length)
            length, tokens, steps = length + gained, tokens + gained, steps + 1
    return tokens / steps
