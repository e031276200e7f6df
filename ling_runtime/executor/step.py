"""One step, eager: draft, verify, accept, commit, extend.

Plain decoding is the same path with a window of one row. The executor knows requests by slot and keeps for each what
the next step needs: the committed length and the bonus token, which is emitted but not yet in the target's cache.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from ling_runtime.executor.interface import Occupancy, PrefillOutput, StepOutput
from ling_runtime.memory.window import Window, to_device
from ling_runtime.ops.prompt import part_of
from ling_runtime.speculation.counts import Counts
from ling_runtime.speculation.interface import Proposal
from ling_runtime.speculation.sampling import choose, token_logprob
from ling_runtime.speculation.verification import RULES, verify

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from ling_runtime.executor.interface import Admission, RowSampling
    from ling_runtime.memory.caches import Caches, Pass
    from ling_runtime.model.ling import Ling, TargetRows
    from ling_runtime.speculation.interface import Proposer, Schedule
    from ling_runtime.speculation.verification import Rule


@dataclass
class Slot:
    """A request in flight. `length` counts committed positions; `bonus` is the token at that position."""

    asked: Admission
    length: int = 0
    bonus: int = -1


class StepExecutor:
    """Satisfies `interface.Executor`; `proposer` None means a window of one row."""

    def __init__(
        self,
        model: Ling,
        caches: Caches,
        proposer: Proposer | None,
        *,
        max_context: int,
        chunk: int,
        rule: Rule = RULES["classic"],
        schedule: Schedule | None = None,
    ) -> None:
        self.max_context, self.vocab_size = max_context, model.config.vocab_size
        self.window = 1 + (proposer.steps if proposer else 0)
        self._model, self._caches, self._proposer = model, caches, proposer
        self._chunk = part_of(chunk, model.kernels)
        self._rule, self._counts = rule, Counts(self.window - 1)
        self.schedule = schedule
        """None: every row is verified. May be replaced between two steps."""
        self._slots: dict[int, Slot] = {}

    def can_admit(self, prompt_tokens: int, max_new_tokens: int) -> bool:
        return self._caches.can_reserve(self._worst_case(prompt_tokens, max_new_tokens))

    def admit(self, asked: Admission) -> int:
        slot = self._caches.reserve(self._worst_case(len(asked.prompt), asked.max_new_tokens))
        self._slots[slot] = Slot(asked)
        return slot

    @torch.inference_mode()
    def prefill(self, slot: int) -> PrefillOutput:
        request = self._slots[slot]
        start, asked, prompt = request.length, request.asked, request.asked.prompt
        rows = min(self._chunk, len(prompt) - start)
        window = replace(self._window_of([slot], rows), prompt=True)
        ids, accepted = self._tensor(prompt[start : start + rows]), self._tensor([rows])
        pass_, target = self._forward(window, ids)
        hidden = target.hidden
        request.length += rows
        self._caches.recurrent.commit(window, accepted)
        scored = self._prompt_logprobs(asked, hidden, start, rows)
        token, logprob = None, None
        if request.length == len(prompt):
            logits = self._model.logits(hidden[rows - 1 : rows])
            token = int(choose(logits, [asked.sampling], self._tensor([request.length])))
            request.bonus = token
            if asked.logprobs is not None:
                logprob = token_logprob(logits[0], token, asked.logprobs)
        if self._proposer:
            following = [*prompt[start + 1 : start + rows + 1], *([] if token is None else [token])]
            self._proposer.extend(pass_, self._tensor([following]), target, accepted)
        return PrefillOutput(token is not None, token, logprob, scored)

    @torch.inference_mode()
    def decode(self, slots: Sequence[int]) -> dict[int, StepOutput]:
        requests = [self._slots[slot] for slot in slots]
        window = self._window_of(slots, self.window)
        sampling = [request.asked.sampling for request in requests]
        anchors = self._tensor([request.bonus for request in requests])
        proposal = self._propose(window, anchors, sampling)
        lengths = self._lengths(slots, proposal)
        if self.schedule and self.schedule.packed and min(lengths) < self.window:
            window = replace(window, counts=lengths)
        ids = window.pack(torch.cat([anchors[:, None], proposal.drafts], dim=1))
        pass_, target = self._forward(window, ids)
        logits = window.spread(self._model.logits(target.hidden[: window.real_rows]))
        verified = verify(logits, proposal, sampling, window.start_index, self._tensor(lengths), self._rule)
        self._caches.recurrent.commit(window, verified.counts)
        if self._proposer:
            self._proposer.extend(pass_, verified.tokens, target, verified.counts)
        outputs = {}
        counts, tokens = verified.counts.tolist(), verified.tokens.tolist()
        self._counts.add(window.real_rows, lengths, counts)
        for i, (slot, request) in enumerate(zip(slots, requests, strict=True)):
            emitted = tokens[i][: counts[i]]
            request.length += counts[i]
            request.bonus = emitted[-1]
            logprobs = self._logprobs(request.asked, logits[i], emitted)
            outputs[slot] = StepOutput(tuple(emitted), logprobs, counts[i] - 1, self.window - 1)
        return outputs

    def release(self, slot: int) -> None:
        del self._slots[slot]
        self._caches.release(slot)
        if self.schedule:
            self.schedule.forget(slot)

    def occupancy(self) -> Occupancy:
        latent, free = self._caches.latent, self._caches.free_slots
        return Occupancy(slots=self._caches.slots, free_slots=free, pages=latent.pages, free_pages=latent.free_pages)

    def kernel_report(self) -> list[dict[str, Any]]:
        return self._model.kernels.report()

    def executor_report(self) -> dict[str, Any]:
        return {"path": "eager", "threads": torch.get_num_threads()}

    def speculation_report(self) -> dict[str, Any] | None:
        if self._proposer is None:
            return None
        return self._counts.report() | (dict(self.schedule.about) if self.schedule else {})

    def reset_counters(self) -> None:
        self._model.kernels.reset()
        self._counts = Counts(self.window - 1)

    def _propose(self, window: Window, anchors: Tensor, sampling: list[RowSampling]) -> Proposal:
        if self._proposer is None:
            return Proposal(drafts=anchors[:, None][:, :0])
        return self._proposer.propose(window, anchors, sampling)

    def _lengths(self, slots: Sequence[int], proposal: Proposal) -> tuple[int, ...]:
        if self.schedule is None:
            return (self.window,) * len(slots)
        assert proposal.confidence is not None, "a schedule comes with a confidence head"
        return self.schedule.lengths(slots, proposal.confidence)

    def _forward(self, window: Window, ids: Tensor) -> tuple[Pass, TargetRows]:
        pass_ = self._caches.begin(window)
        return pass_, self._model.rows(ids, pass_, self._proposer.capture if self._proposer else ())

    def _window_of(self, slots: Sequence[int], rows: int) -> Window:
        starts = tuple(self._slots[slot].length for slot in slots)
        return Window(slots=tuple(slots), starts=starts, rows=rows, device=self._model.device)

    def _worst_case(self, prompt_tokens: int, max_new_tokens: int) -> int:
        """Positions a request can touch: the last step may write a whole window past the last token it keeps."""
        return prompt_tokens + max_new_tokens + self.window

    def _logprobs(self, asked: Admission, logits: Tensor, tokens: list[int]) -> tuple[Any, ...] | None:
        if asked.logprobs is None:
            return None
        return tuple(token_logprob(logits[i], token, asked.logprobs) for i, token in enumerate(tokens))

    def _prompt_logprobs(self, asked: Admission, hidden: Tensor, start: int, rows: int) -> tuple[Any, ...] | None:
        """Scores of the prompt tokens that follow this chunk's rows, from the position asked for."""
        if asked.prompt_logprobs_from is None:
            return None
        first = max(asked.prompt_logprobs_from - 1 - start, 0)
        last = min(rows, len(asked.prompt) - 1 - start)
        logits = self._model.logits(hidden[first:last]) if first < last else hidden[:0]
        following = asked.prompt[start + first + 1 : start + last + 1]
        return tuple(token_logprob(logits[i], token, asked.logprobs or 0) for i, token in enumerate(following))

    def _tensor(self, values: Sequence[int] | Sequence[list[int]]) -> Tensor:
        return to_device(values, self._model.device)
