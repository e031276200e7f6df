"""How far a draft carries on texts that the target wrote greedily, and whether its confidence can be believed.

A greedy trajectory fixes what every verification would accept: drafts count while they equal its next tokens, and until
the first miss the tokens before them are the drafts themselves. So teacher forcing at every position, in bulk, gives
what serving would have accepted, and walking from bonus to bonus afterwards costs nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ling_runtime.speculation.dspark.calibration import errors_of
from ling_runtime.training.acceptance import Span, accept_length
from ling_runtime.training.dspark.blocks import blocks_at
from ling_runtime.training.dspark.forward import forward
from ling_runtime.training.dspark.heads import confidence, markov_bias

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ling_runtime.draft_config import DraftConfig
    from ling_runtime.training.dspark.batch import Batch
    from ling_runtime.training.dspark.trainer import Shared
    from ling_runtime.training.layers import Params


class Replayed(NamedTuple):
    """For every position t of every row as an anchor."""

    runs: Tensor
    """Drafts that the text confirms, [B, T] int64."""
    confidence: Tensor
    """Logits of the confidence head, [B, T, g]."""


@dataclass(frozen=True, kw_only=True)
class Score:
    accept_length: float
    """Tokens after the first over verification steps, bonus included."""
    anchors: int
    accept_rate: tuple[float, ...]
    """Share of blocks whose row k was right among those whose rows before it were."""
    ece: tuple[float, ...]
    """Expected calibration error of the survival of rows 0..k, before any calibration."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@torch.inference_mode()
def replay(params: Params, config: DraftConfig, shared: Shared, batch: Batch, anchors: int = 64) -> Replayed:
    """Greedy drafts at all positions of `batch`, `anchors` positions at a time."""
    runs, sure = [], []
    everywhere = torch.ones_like(batch.loss_mask)
    for at in torch.arange(batch.ids.shape[1], device=batch.ids.device).split(anchors):
        rows = at.expand(len(batch.ids), -1)
        blocks = blocks_at(batch.ids, everywhere, rows, torch.ones_like(rows, dtype=torch.bool), config.block_size)
        hidden = forward(params, config, shared.embedding, batch.hidden.to(shared.embedding.dtype), batch.ids, rows)
        logits = F.linear(hidden, shared.lm_head) + markov_bias(params, config, hidden, blocks.previous)
        hits = (logits.argmax(-1) == blocks.labels) & blocks.valid
        runs.append(hits.long().cumprod(-1).sum(-1))
        sure.append(confidence(params, config, hidden, blocks.previous))
    return Replayed(torch.cat(runs, 1), torch.cat(sure, 1))


def evaluate(
    params: Params, config: DraftConfig, shared: Shared, batches: Iterable[Batch], limit: int | None = None
) -> Score:
    """The score over each row's own tokens, of which at most `limit` count, as in requests of that output length."""
    runs, sure, spans = [], [], []
    for batch in batches:
        seen = replay(params, config, shared, batch)
        runs.append(seen.runs.cpu())
        sure.append(seen.confidence.cpu())
        spans += own_spans(batch.loss_mask, config.block_size, limit)
    return score(torch.cat(runs), torch.cat(sure), spans)


def own_spans(loss_mask: Tensor, block: int, limit: int | None) -> list[Span]:
    """The target's own part of each row, ending a block before the row does, so that no run is cut short."""
    last = loss_mask.shape[1] - block
    starts = loss_mask.long().argmax(1).tolist()
    return [Span(start, last if limit is None else min(start + limit, last)) for start in starts]


def score(runs: Tensor, sure: Tensor, spans: Sequence[Span]) -> Score:
    inside = torch.zeros_like(runs, dtype=torch.bool)
    for row, span in zip(inside, spans, strict=True):
        row[span.start : span.end] = True
    block = sure.shape[-1]
    correct = runs[inside][:, None] > torch.arange(block)
    passed = torch.cat([inside.sum()[None], correct.sum(0)]).double()
    return Score(
        accept_length=accept_length(runs[:, 1:], spans, block),  # there, row i stands for the anchor at i + 1
        anchors=int(inside.sum()),
        accept_rate=tuple((passed[1:] / passed[:-1].clamp(min=1)).tolist()),
        ece=errors_of(sure[inside], correct, [1.0] * block),
    )
