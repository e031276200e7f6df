"""The DSpark proposer: a block of g drafts from one forward of the draft and a short chain of choices.

It keeps nothing per request but the draft's cache. The surprise: there is nothing to make true again after a step.
The cache holds what the target's own rows say, and the newest token has no row yet: it is the next block's anchor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ling_runtime.ops.draft import Gumbel
from ling_runtime.speculation.interface import Proposal
from ling_runtime.speculation.noise import Stream, seed_tensor, uniform

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from ling_runtime.executor.interface import RowSampling
    from ling_runtime.memory.caches import Pass
    from ling_runtime.memory.draft import DraftPool
    from ling_runtime.memory.window import Window
    from ling_runtime.model.dspark import Dspark
    from ling_runtime.model.ling import Ling, TargetRows

LEAST_TEMPERATURE = 1e-5


class DsparkProposer:
    """`steps` drafts per request; `greedy` drafts take the best token whatever the request's sampling."""

    def __init__(self, target: Ling, draft: Dspark, pool: DraftPool, *, steps: int, greedy: bool = False) -> None:
        self.steps, self.capture = steps, draft.config.target_layer_ids
        self._target, self._draft, self._pool, self._greedy = target, draft, pool, greedy
        self._choose = target.kernels["draft_choice"]

    @property
    def draft(self) -> Dspark:
        return self._draft

    @property
    def cache(self) -> Tensor:
        """[pages, PAGE, layers, width] of the draft's cache."""
        return self._pool.rows

    def propose(self, window: Window, anchors: Tensor, sampling: Sequence[RowSampling]) -> Proposal:
        rows = self._draft.rows(self.steps)
        contexts = [
            self._pool.context(slot, start + rows) for slot, start in zip(window.slots, window.starts, strict=True)
        ]
        hidden = self._draft(anchors, window.starts, contexts, self.steps)
        base = self._target.logits(hidden.flatten(0, 1)).unflatten(0, hidden.shape[:2])
        noise = None if self._greedy else block_noise(window, sampling, self.steps, base.shape[2])
        logits, tokens = self._chain(hidden, base, anchors, noise)
        confidence = self._draft.confidence
        return Proposal(
            drafts=torch.stack(tokens[1:], dim=1),
            probabilities=None if noise is None else _distributions(logits, noise[0].temperature),
            confidence=None if confidence is None else confidence(hidden, torch.stack(tokens[:-1], dim=1)),
        )

    def extend(self, pass_: Pass, following: Tensor, rows: TargetRows, accepted: Tensor) -> None:  # noqa: ARG002
        """Inject the whole window; rows past the accepted ones are overwritten before anything reads them."""
        self._pool.inject(pass_.places, self._draft.context(rows.captured, pass_.window.positions))

    def _chain(
        self, hidden: Tensor, base: Tensor, anchors: Tensor, noise: list[Gumbel] | None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Step logits of each draft, and the anchors followed by the drafts."""
        bias, tokens, logits = self._draft.markov.chain(hidden), [anchors], []
        for k in range(self.steps):
            one, token = self._choose(
                base[:, k], bias(k, tokens[-1]), self._target.dtype, None if noise is None else noise[k]
            )
            logits.append(one)
            tokens.append(token)
        return logits, tokens


def block_noise(window: Window, sampling: Sequence[RowSampling], drafts: int, vocab: int) -> list[Gumbel] | None:
    """Noise of each draft, by each request's seed and its anchor's position; None where every request is greedy."""
    warm = torch.tensor([one.temperature > 0 for one in sampling], device=window.device)[:, None]
    if not warm.any():
        return None
    seeds = seed_tensor((one.seed for one in sampling), window.device)
    numbers = uniform(seeds, window.start_index, drafts * vocab, Stream.DRAFT).unflatten(1, (drafts, vocab))
    wished = torch.tensor([one.temperature for one in sampling], dtype=torch.float64, device=window.device)
    temperature = torch.where(warm, wished[:, None].clamp(min=LEAST_TEMPERATURE), 1.0)
    values = torch.where(warm, -(-numbers.log()).log().transpose(0, 1), 0.0)
    return [Gumbel(one, temperature) for one in values]


def _distributions(logits: Sequence[Tensor], temperature: Tensor) -> Tensor:
    """softmax(logits / temperature) [B, g, V] in fp64."""
    return torch.softmax(torch.stack(list(logits), dim=1).double() / temperature[:, None], dim=-1)
