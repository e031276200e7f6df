"""The NEXTN proposer: S drafts from S - 1 forwards, then one extend that makes the draft cache true again.

What it keeps per slot between steps is the seed (its guess for the position after the bonus token) and the hidden row
that produced it. The surprise: cache entries made while drafting come from guessed hidden rows; the extend overwrites
them with the target's, and skipping it would leave every output right and the accept length falling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ling_runtime.memory.window import Window
from ling_runtime.speculation.acceptance import last_accepted
from ling_runtime.speculation.interface import Proposal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from ling_runtime.executor.interface import RowSampling
    from ling_runtime.memory.caches import Caches, Pass
    from ling_runtime.model.ling import Ling, TargetRows
    from ling_runtime.model.nextn import Nextn


class NextnProposer:
    """`steps` drafts per request and step; state indexed by slot."""

    def __init__(self, target: Ling, draft: Nextn, caches: Caches, *, steps: int, slots: int) -> None:
        self.steps = steps
        self.capture: tuple[int, ...] = ()
        self._target, self._draft, self._caches = target, draft, caches
        self._seed = torch.zeros(slots, dtype=torch.int64, device=target.device)
        self._hidden = torch.zeros(slots, target.config.hidden_size, dtype=target.dtype, device=target.device)

    @property
    def draft(self) -> Nextn:
        return self._draft

    @property
    def seeds(self) -> tuple[Tensor, Tensor]:
        """By slot, the guess behind the bonus token [slots] and the draft's row that made it [slots, D]; shared."""
        return self._seed, self._hidden

    def propose(self, window: Window, anchors: Tensor, sampling: Sequence[RowSampling]) -> Proposal:  # noqa: ARG002
        """Deterministic drafts; the anchors are already part of the seeds."""
        token, hidden = self._seed[window.slot_index], self._hidden[window.slot_index]
        drafts = [token]
        for step in range(self.steps - 1):
            starts = tuple(start + step for start in window.starts)
            row = Window(slots=window.slots, starts=starts, rows=1, device=window.device)
            hidden = self._draft(token, hidden, self._caches.begin(row))
            token = self._target.logits(hidden[: row.batch]).argmax(dim=-1)
            drafts.append(token)
        return Proposal(drafts=torch.stack(drafts, dim=1))

    def extend(self, pass_: Pass, following: Tensor, rows: TargetRows, accepted: Tensor) -> None:
        """Rewrite the draft cache over the window from the target's rows and keep the next seed."""
        window = pass_.window
        drafted = self._draft(following.flatten(), rows.hidden, pass_)
        last = last_accepted(window.spread(drafted), accepted)
        self._hidden[window.slot_index] = last
        self._seed[window.slot_index] = self._target.logits(last).argmax(dim=-1)
