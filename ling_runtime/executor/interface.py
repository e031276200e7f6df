"""What the engine asks of an executor, and what it gets back; nothing here imports torch.

The engine schedules requests and knows nothing of tensors; the executor computes steps and knows nothing of text,
stop strings or HTTP. Everything they say to each other is in this file, so either side can be replaced alone: the
server's tests run on a fake executor in plain Python. The surprise: a decode step returns several tokens per request
(the accepted prefix and the bonus token), and it is the engine that drops those past a stop or the length limit.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, kw_only=True)
class RowSampling:
    """How one request's rows are sampled: temperature 0 is greedy, top_k -1 is off, the seed is the request's own."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int


GREEDY = RowSampling(temperature=0.0, top_p=1.0, top_k=-1, min_p=0.0, seed=0)


@dataclass(frozen=True)
class Admission:
    """What a request asks of an executor.

    `logprobs` is the number of alternatives beside each output token (None: no logprobs at all);
    `prompt_logprobs_from` is the first prompt position whose token is scored (None: none).
    """

    prompt: Sequence[int]
    max_new_tokens: int
    sampling: RowSampling = GREEDY
    _: KW_ONLY
    logprobs: int | None = None
    prompt_logprobs_from: int | None = None


@dataclass(frozen=True)
class TokenLogprob:
    """One token's natural-log probability under the unscaled logits, and the alternatives at its position, best first.

    `top` holds (logprob, token) pairs, as many as the request asked for.
    """

    logprob: float
    token: int
    top: tuple[tuple[float, int], ...]


@dataclass(frozen=True)
class StepOutput:
    """One decode step of one request: accepted drafts and then the bonus token, so there is always at least one token.

    `logprobs` has one entry per token, or is None when the request asked for none.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    correct_drafts: int
    proposed_drafts: int


@dataclass(frozen=True)
class PrefillOutput:
    """One chunk of a prompt; the chunk that ends the prompt has `done` set and carries the first sampled token.

    `prompt_logprobs` covers the prompt tokens scored by this chunk, from the position given at admission on.
    """

    done: bool
    token: int | None
    logprob: TokenLogprob | None
    prompt_logprobs: tuple[TokenLogprob, ...] | None


@dataclass(frozen=True, kw_only=True)
class Occupancy:
    """What running requests have left of the executor's memory; everything is free when there are none."""

    slots: int
    free_slots: int
    pages: int
    free_pages: int


class Executor(Protocol):
    """A model with its state pools; every method is called from the one engine thread.

    `window` is the number of rows a decode step verifies per request: 1 without speculation.
    """

    max_context: int
    vocab_size: int
    window: int

    def can_admit(self, prompt_tokens: int, max_new_tokens: int) -> bool:
        """Whether a slot and the pages of the worst case are free now."""

    def admit(self, asked: Admission) -> int:
        """Reserve what the request needs and return its slot."""

    def prefill(self, slot: int) -> PrefillOutput:
        """Compute the next chunk of the slot's prompt."""

    def decode(self, slots: Sequence[int]) -> dict[int, StepOutput]:
        """One verify step for all the slots, each of which has finished its prefill.

        An executor may run ahead: then a call queues its step and returns the one before, for the requests of that
        step that have not been released; the first call returns nothing.
        """

    def release(self, slot: int) -> None:
        """Give back the slot and its pages, at any point after admission."""

    def occupancy(self) -> Occupancy:
        """Slots and cache pages, free and in all."""

    def kernel_report(self) -> list[dict[str, Any]]:
        """Rows of `operator`, `variant`, `numerics` and `calls`, counted since the last reset."""

    def executor_report(self) -> dict[str, Any]:
        """How decode steps run: `path` eager or graphs and torch's `threads`, and what was counted since the reset."""

    def speculation_report(self) -> dict[str, Any] | None:
        """What verification did since the last reset; None without speculation."""

    def reset_counters(self) -> None:
        """Set the call counts to zero."""
