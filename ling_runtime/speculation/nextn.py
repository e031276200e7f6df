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

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.memory.caches import Caches
    from ling_runtime.model.ling import Ling
    from ling_runtime.model.nextn import Nextn


class NextnProposer:
    """`steps` drafts per request and step; state indexed by slot."""

    def __init__(self, target: Ling, draft: Nextn, caches: Caches, *, steps: int, slots: int) -> None:
        self.steps = steps
        self._target, self._draft, self._caches = target, draft, caches
        self._seed = torch.zeros(slots, dtype=torch.int64, device=target.device)
        self._hidden = torch.zeros(slots, target.config.hidden_size, dtype=target.dtype, device=target.device)

    def propose(self, window: Window) -> Tensor:
        """Drafts [B, S] for the positions after the bonus token of each request in the verify `window`."""
        token, hidden = self._seed[window.slot_index], self._hidden[window.slot_index]
        drafts = [token]
        for step in range(self.steps - 1):
            starts = tuple(start + step for start in window.starts)
            row = Window(slots=window.slots, starts=starts, rows=1, device=window.device)
            hidden = self._draft(token, hidden, self._caches.begin(row))
            token = self._target.logits(hidden[: row.batch]).argmax(dim=-1)
            drafts.append(token)
        return torch.stack(drafts, dim=1)

    def extend(self, window: Window, following: Tensor, hidden: Tensor, accepted: Tensor) -> None:
        """Rewrite the draft cache over `window` from the target's rows and keep the next seed.

        `following` [B, T] holds the token after each row, `hidden` [>= B * T, D] the target's rows, of which the first
        `accepted` [B] count; rows past them leave garbage that the next window overwrites.
        """
        rows = self._draft(following.flatten(), hidden, self._caches.begin(window))
        last = last_accepted(rows[: window.real_rows].view(window.batch, window.rows, -1), accepted)
        self._hidden[window.slot_index] = last
        self._seed[window.slot_index] = self._target.logits(last).argmax(dim=-1)
