"""The two graphs around verification under NEXTN: drafts before it, the draft cache made true after it.

Both work on the verify step's buffers and on two of their own, the seed and its hidden row by slot, so three replays
make a step and nothing between them needs the host. The extend pass always covers the whole window, whatever was
accepted: its shape is fixed, and rows past the accepted prefix are overwritten next time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ling_runtime.executor.graphs import Recorded

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.executor.graphs import VerifyStep
    from ling_runtime.executor.relay import Relay
    from ling_runtime.model.ling import Ling
    from ling_runtime.model.nextn import Nextn


@dataclass(frozen=True)
class Seeds:
    """By slot: the guess for the position behind the bonus token, and the draft's row that made it."""

    tokens: Tensor  # [slots]
    hidden: Tensor  # [slots, D]


class DraftStep(Recorded):
    """Fills the relay's drafts of the verify step's slots: the seed, then one forward for each further draft."""

    def __init__(self, target: Ling, draft: Nextn, relay: Relay, seeds: Seeds, verify: VerifyStep, steps: int) -> None:
        self._target, self._draft, self._relay = target, draft, relay
        self._seeds, self._verify, self._steps = seeds, verify, steps

    @torch.inference_mode()
    def run(self) -> None:
        verify, slots = self._verify, self._verify.slots
        verify.look_up()
        token, hidden = self._seeds.tokens.index_select(0, slots), self._seeds.hidden.index_select(0, slots)
        drafts = [token]
        for step in range(self._steps - 1):
            hidden = self._draft(token, hidden, verify.window_pass(ahead_by=step, rows=1))  # type: ignore[arg-type]
            token = self._target.greedy(hidden)
            drafts.append(token)
        self._relay.drafts.index_copy_(0, slots, torch.stack(drafts, dim=1))


class ExtendStep(Recorded):
    """Rewrites the draft cache over the verified window and keeps the next seeds."""

    def __init__(self, target: Ling, draft: Nextn, seeds: Seeds, verify: VerifyStep) -> None:
        self._target, self._draft, self._seeds, self._verify = target, draft, seeds, verify

    @torch.inference_mode()
    def run(self) -> None:
        verify = self._verify
        choices, accepted = verify.results
        batch, rows = choices.shape
        drafted = self._draft(choices.flatten(), verify.hidden, verify.window_pass())  # type: ignore[arg-type]
        first = torch.arange(batch, device=drafted.device) * rows
        last = drafted.index_select(0, first + accepted - 1)
        self._seeds.hidden.index_copy_(0, verify.slots, last)
        self._seeds.tokens.index_copy_(0, verify.slots, self._target.greedy(last))
