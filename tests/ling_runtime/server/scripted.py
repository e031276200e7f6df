"""An executor in plain Python that says what it is told to: the server's behaviour without a model.

It continues each prompt with a script and checks how it is used: a slot is released exactly once, nothing decodes
before its prompt is done, and pages are never oversubscribed. The accepted prefix varies from step to step, so that
whatever depends on the window by mistake shows.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ling_runtime.executor.interface import Occupancy, PrefillOutput, StepOutput, TokenLogprob

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ling_runtime.executor.interface import Admission

    Script = Callable[[Sequence[int]], Sequence[int]]


@dataclass
class Slot:
    asked: Admission
    script: Sequence[int]
    reserved: int
    computed: int = 0
    emitted: int = 0


@dataclass
class ScriptedExecutor:
    script: Script
    window: int = 1
    max_context: int = 2048
    vocab_size: int = 512
    chunk: int = 64
    num_slots: int = 8
    num_tokens: int = 8192
    """Cache positions for all slots together."""
    step_s: float = 0.0
    fail_at_step: int | None = None
    slots: dict[int, Slot] = field(default_factory=dict)
    log: list[tuple[str, Any]] = field(default_factory=list)
    steps: int = 0

    def can_admit(self, prompt_tokens: int, max_new_tokens: int) -> bool:
        reserved = sum(slot.reserved for slot in self.slots.values())
        return len(self.slots) < self.num_slots and reserved + prompt_tokens + max_new_tokens <= self.num_tokens

    def admit(self, asked: Admission) -> int:
        assert self.can_admit(len(asked.prompt), asked.max_new_tokens)
        slot = min(set(range(1, self.num_slots + 1)) - set(self.slots))
        self.slots[slot] = Slot(asked, self.script(asked.prompt), len(asked.prompt) + asked.max_new_tokens)
        self.log.append(("admit", slot))
        return slot

    def prefill(self, slot: int) -> PrefillOutput:
        state = self.slots[slot]
        asked, prompt, start = state.asked, state.asked.prompt, state.computed
        assert start < len(prompt), "this prompt is done"
        state.computed = min(start + self.chunk, len(prompt))
        self.log.append(("prefill", slot))
        scored = None
        if asked.prompt_logprobs_from is not None:
            first = max(asked.prompt_logprobs_from, start + 1)
            last = min(state.computed + 1, len(prompt))
            scored = tuple(self._logprob(state, prompt[i]) for i in range(first, last))
        if state.computed < len(prompt):
            return PrefillOutput(False, None, None, scored)
        (token,) = self._next(state, 1)
        logprob = None if asked.logprobs is None else self._logprob(state, token)
        return PrefillOutput(True, token, logprob, scored)

    def decode(self, slots: Sequence[int]) -> dict[int, StepOutput]:
        self.steps += 1
        self.log.append(("decode", tuple(slots)))
        if self.fail_at_step is not None and self.steps >= self.fail_at_step:
            raise RuntimeError("a kernel went wrong")
        if self.step_s:
            time.sleep(self.step_s)
        return {slot: self._step(self.slots[slot]) for slot in slots}

    def release(self, slot: int) -> None:
        del self.slots[slot]
        self.log.append(("release", slot))

    def occupancy(self) -> Occupancy:
        """Pages of one token."""
        reserved = sum(slot.reserved for slot in self.slots.values())
        return Occupancy(
            slots=self.num_slots,
            free_slots=self.num_slots - len(self.slots),
            pages=self.num_tokens,
            free_pages=self.num_tokens - reserved,
        )

    def executor_report(self) -> dict[str, Any]:
        return {"path": "eager", "threads": 1}

    def kernel_report(self) -> list[dict[str, Any]]:
        return [{"operator": "linear", "variant": "reference", "numerics": "reference", "calls": self.steps}]

    def speculation_report(self) -> dict[str, Any] | None:
        return {"verify_requests": self.steps} if self.window > 1 else None

    def reset_counters(self) -> None:
        self.steps = 0

    def _step(self, state: Slot) -> StepOutput:
        assert state.computed == len(state.asked.prompt), "decoded before its prompt was done"
        tokens = self._next(state, 1 + state.emitted % self.window)
        logprobs = None if state.asked.logprobs is None else tuple(self._logprob(state, token) for token in tokens)
        return StepOutput(tokens, logprobs, len(tokens) - 1, self.window - 1)

    def _next(self, state: Slot, count: int) -> tuple[int, ...]:
        """The script, over and over."""
        tokens = tuple(state.script[(state.emitted + i) % len(state.script)] for i in range(count))
        state.emitted += count
        return tokens

    def _logprob(self, state: Slot, token: int) -> TokenLogprob:
        return TokenLogprob(-token / 8, token, tuple((-rank / 4, rank) for rank in range(state.asked.logprobs or 0)))
