"""The executor whose greedy steps are graph replays; whatever a graph does not cover runs eagerly on the same state.

One set of graphs per number of requests, recorded when that number first comes up: the first step of a set runs launch
by launch, and its recording serves all later ones. The surprise is that both paths may alternate from step to step: the
device holds lengths and tokens by slot, and an eager step puts back what it changed.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import torch

from ling_runtime.config import ConfigError
from ling_runtime.executor.graphs import DEVICE_VARIANTS, Recorded, VerifyStep
from ling_runtime.executor.interface import StepOutput
from ling_runtime.executor.nextn_graphs import DraftStep, ExtendStep, Seeds
from ling_runtime.executor.relay import Relay
from ling_runtime.executor.step import StepExecutor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ling_runtime.executor.interface import PrefillOutput
    from ling_runtime.memory.caches import Caches
    from ling_runtime.model.ling import Ling
    from ling_runtime.speculation.nextn import NextnProposer


class GreedyStep:
    """Draft, verify and extend for `batch` requests, in the order in which they are replayed."""

    def __init__(self, model: Ling, caches: Caches, relay: Relay, proposer: NextnProposer | None, batch: int) -> None:
        rows = 1 + (proposer.steps if proposer else 0)
        self.verify = VerifyStep(model, caches, relay, batch=batch, rows=rows)
        self._parts: list[Recorded] = [self.verify]
        if proposer:
            draft, seeds = proposer.draft, Seeds(*proposer.seeds)
            self._parts.insert(0, DraftStep(model, draft, relay, seeds, self.verify, proposer.steps))
            self._parts.append(ExtendStep(model, draft, seeds, self.verify))
        self._kernels, self._launched = model.kernels, Counter[str]()

    def __call__(self, slots: Sequence[int]) -> tuple[list[list[int]], list[int]]:
        """Choices [B][W] and accepted counts [B] of one step of `slots`."""
        self.verify.slots.copy_(torch.tensor(slots))
        before = Counter(self._kernels.calls)
        for part in self._parts:
            part.step()
        ran = Counter(self._kernels.calls)
        ran.subtract(before)
        self._count(ran)
        choices, accepted = self.verify.results
        return choices.tolist(), accepted.tolist()

    def _count(self, ran: Counter[str]) -> None:
        """A replay calls no Python: count what the recorded step called."""
        if any(ran.values()):
            recorded = 2 if self.verify.recorded else 1
            self._launched = Counter({operator: calls // recorded for operator, calls in ran.items()})
            self._kernels.calls.update({o: self._kernels.calls[o] - ran[o] + self._launched[o] for o in ran})
        else:
            self._kernels.calls.update({o: self._kernels.calls[o] + calls for o, calls in self._launched.items()})


class GraphExecutor(StepExecutor):
    """`proposer` is NEXTN's or None; kernels must be the device variants."""

    def __init__(
        self, model: Ling, caches: Caches, proposer: NextnProposer | None, *, max_context: int, chunk: int
    ) -> None:
        super().__init__(model, caches, proposer, max_context=max_context, chunk=chunk)
        chosen = {str(row["operator"]): row["variant"] for row in model.kernels.report()}
        missing = sorted(o for o, name in DEVICE_VARIANTS.items() if chosen[o] != name)
        if missing:
            raise ConfigError(f"graphs need the device variants of {', '.join(missing)}: kernels.OPERATOR=triton")
        self._drafting = proposer
        longest = max_context + 2 * self.window
        self._relay = Relay(caches.slots + 1, drafts=self.window - 1, longest=longest, device=model.device)
        self._graphs: dict[int, GreedyStep] = {}

    def prefill(self, slot: int) -> PrefillOutput:
        out = super().prefill(slot)
        if out.done:
            request = self._slots[slot]
            self._relay.admit(slot, self._caches, length=request.length, token=request.bonus)
        return out

    def decode(self, slots: Sequence[int]) -> dict[int, StepOutput]:
        requests = [self._slots[slot] for slot in slots]
        if any(request.sampling.temperature > 0 or request.logprobs is not None for request in requests):
            outputs = super().decode(slots)
            for slot, request in zip(slots, requests, strict=True):
                self._relay.put(slot, length=request.length, token=request.bonus)
            return outputs
        if len(slots) not in self._graphs:
            self._graphs[len(slots)] = GreedyStep(self._model, self._caches, self._relay, self._drafting, len(slots))
        choices, accepted = self._graphs[len(slots)](slots)
        self._counts.add(len(slots) * self.window, (self.window,) * len(slots), accepted)
        outputs = {}
        for slot, request, tokens, count in zip(slots, requests, choices, accepted, strict=True):
            request.length += count
            request.bonus = tokens[count - 1]
            outputs[slot] = StepOutput(tuple(tokens[:count]), None, count - 1, self.window - 1)
        return outputs
