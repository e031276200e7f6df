"""What gates see and say: the outputs of one live server, and the result of comparing two of them.

Everything here is plain data that survives JSON, because the evidence of a baseline is stored beside its record and
read again by every later candidate. The surprise: a `GateResult` has no default status. A gate that did not run has to
say so in words, and nothing can pass by being forgotten.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pydantic import TypeAdapter

Status = Literal["pass", "fail", "not_applicable", "not_run"]


@dataclass(frozen=True, kw_only=True)
class GateResult:
    name: str
    status: Status
    required: bool
    reason: str
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Missing:
    """Stands where evidence should be, with the reason why it is not; a gate that meets one is `not_run`."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Prompt:
    name: str
    text: str
    ignore_eos: bool = True
    stop: tuple[str, ...] = ()
    canary: bool = False
    """Chosen because the baseline nearly chose another token somewhere in its answer."""
    max_new_tokens: int | None = None
    """Shorter than the probe's own length where given."""


@dataclass(frozen=True, kw_only=True)
class Digest:
    """The best alternatives at one output position: ids and the float32 bits of their logprobs, best first."""

    position: int
    ids: tuple[int, ...]
    bits: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Output:
    """A greedy answer. `margins` is the top-2 gap at every position, in nats (equally: in logits)."""

    prompt: str
    ids: tuple[int, ...]
    text: str
    finish_reason: str
    matched: int | str | None
    spec_verify_ct: int | None = None
    margins: tuple[float, ...] = ()
    digest: tuple[Digest, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Greedy outputs of one live server, each prompt cold, in the order of `prompts`."""

    prompts: tuple[Prompt, ...]
    max_new_tokens: int
    outputs: tuple[Output, ...]


@dataclass(frozen=True, kw_only=True)
class Pollution:
    """The same prompts again on the same server: beside a load, after it without a flush, then after a flush."""

    load_requests: int
    before: tuple[Output, ...]
    after_load: tuple[Output, ...]
    after_flush: tuple[Output, ...]
    """Asked plainly: streamed, without logprobs."""
    during_load: tuple[Output, ...] = ()
    """Of some prompts, the beginnings of their answers."""


@dataclass(frozen=True, kw_only=True)
class Accept:
    """Accept length of the measured window, bonus included: sum(n - 1) / sum(v)."""

    length: float
    source: Literal["definition", "measured", "simulated"]


@dataclass(frozen=True, kw_only=True)
class TaskAnswers:
    """One entry of `correct` per question, in the data's order; equal `data_hash` means the same questions."""

    name: str
    data_hash: str
    correct: tuple[bool, ...]
    invalid_rate: float
    stop_rate: float
    truncation_rate: float

    def __post_init__(self) -> None:
        assert self.correct, "a task without questions has no score"

    @property
    def accuracy(self) -> float:
        return sum(self.correct) / len(self.correct)


@dataclass(frozen=True, kw_only=True)
class CellEvidence:
    """All that a later candidate needs of its baseline. None: that part was not collected."""

    probe: Probe | None = None
    pollution: Pollution | None = None
    accept: Accept | None = None
    task: TaskAnswers | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Any) -> CellEvidence:
        """Inverse of `to_json`, before or after a trip through a file. Raises pydantic's ValidationError."""
        return _ADAPTER.validate_python(data)


_ADAPTER = TypeAdapter(CellEvidence)
