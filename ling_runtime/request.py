"""What was asked and how it may end: the values that travel between the HTTP side and the engine thread, all frozen.

A request goes in once; updates come back, one per step that gave the request tokens, the last of them with a finish
and a summary. The surprise: an update carries only what is new. Cumulative text is a matter of the API that promises
it, so the engine's work per step does not grow with the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ling_runtime.executor.interface import Admission, RowSampling

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ling_runtime.executor.interface import TokenLogprob
    from ling_runtime.sampling import SamplingParams


@dataclass(frozen=True, kw_only=True)
class Request:
    id: str
    prompt: tuple[int, ...]
    max_new_tokens: int
    """Resolved: never more than the context has room for."""
    sampling: SamplingParams
    seed: int
    stop_tokens: Mapping[int, int | str]
    """Ids that end the answer, and what to report as matched: the id, or the stop string spelling a special token."""
    logprobs: int | None = None
    """Alternatives beside each output token; None: no logprobs."""
    logprob_start: int | None = None
    """Prompt position from which prompt logprobs are reported, up to the prompt's length; None: not asked for."""

    @property
    def prompt_logprobs_from(self) -> int | None:
        """First prompt position to score: the one after the start, which itself has no context that was asked for."""
        if self.logprob_start is None or self.logprob_start + 1 >= len(self.prompt):
            return None
        return self.logprob_start + 1

    @property
    def admission(self) -> Admission:
        return Admission(
            self.prompt,
            self.max_new_tokens,
            self.rows,
            logprobs=self.logprobs,
            prompt_logprobs_from=self.prompt_logprobs_from,
        )

    @property
    def rows(self) -> RowSampling:
        asked = self.sampling
        return RowSampling(
            temperature=0.0 if asked.greedy else asked.temperature,
            top_p=asked.top_p,
            top_k=asked.top_k,
            min_p=asked.min_p,
            seed=self.seed,
        )


@dataclass(frozen=True)
class Stop:
    """A stop token (its id) or a stop string."""

    type: ClassVar[str] = "stop"
    matched: int | str

    def to_json(self) -> dict[str, object]:
        return {"type": self.type, "matched": self.matched}


@dataclass(frozen=True)
class Length:
    type: ClassVar[str] = "length"
    length: int

    def to_json(self) -> dict[str, object]:
        return {"type": self.type, "length": self.length}


@dataclass(frozen=True)
class Abort:
    """The client went away (499), the engine failed (500) or the server is shutting down (503)."""

    type: ClassVar[str] = "abort"
    message: str
    status: int

    def to_json(self) -> dict[str, object]:
        return {"type": self.type, "message": self.message, "status_code": self.status}


Finish = Stop | Length | Abort


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """Counts of one request's decode steps; `histogram[k]` is the number of steps with k correct drafts."""

    verify_steps: int
    correct_drafts: int
    proposed_drafts: int
    histogram: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Update:
    """What one step added to an answer."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """All of the prompt's, with the first update."""
    finish: Finish | None = None
    latency_s: float | None = None
    """From arrival to the last token; set with `finish`."""
    speculation: Speculation | None = None
    """Set with `finish` where the executor speculates."""
