"""What the executor asks of a proposer, and what it gets back.

A proposer guesses the tokens after each request's newest one before the target runs, and learns from the target's rows
afterwards. The surprise: a proposer that draws its drafts at random must say from which distributions it did, or
nothing exact can be made of them; one that does not is deterministic, and its drafts are accepted by being the
target's own choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from ling_runtime.executor.interface import RowSampling
    from ling_runtime.memory.caches import Pass
    from ling_runtime.memory.window import Window
    from ling_runtime.model.ling import TargetRows


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """g drafts for each of B requests, for the positions after their newest token."""

    drafts: Tensor
    """[B, g]"""
    probabilities: Tensor | None = None
    """[B, g, V] in fp64: what each draft was drawn from. None: all drafts are deterministic.

    Rows of greedy requests hold no meaning."""
    confidence: Tensor | None = None
    """[B, g] logits of each draft's acceptance given that of those before it, not calibrated."""


Reads = Literal["nothing", "this", "earlier"]
"""Which step's confidences decide how many rows are verified."""


class Schedule(Protocol):
    """Decides how many rows of each request a step verifies."""

    @property
    def packed(self) -> bool:
        """Whether the other rows are left out of the computation."""

    @property
    def reads(self) -> Reads:
        """An earlier step's confidences are there without waiting for the device."""

    @property
    def about(self) -> Mapping[str, Any]:
        """What it was made from, for reports."""

    def lengths(self, slots: Sequence[int], confidence: Tensor) -> tuple[int, ...]:
        """Rows of the request in each slot, 1..g + 1, from the proposal's confidence logits [B, g]."""

    def forget(self, slot: int) -> None:
        """The slot's next request is another one."""


class Proposer(Protocol):
    steps: int
    """g, drafts per request and step."""
    capture: tuple[int, ...]
    """Target layers whose rows `extend` reads."""

    def propose(self, window: Window, anchors: Tensor, sampling: Sequence[RowSampling]) -> Proposal:
        """Drafts for the requests of the verify `window`; anchors [B] are their newest tokens, at `window.starts`."""

    def extend(self, pass_: Pass, following: Tensor, rows: TargetRows, accepted: Tensor) -> None:
        """Take in the target's rows over a window: a prompt's chunk, or what was verified.

        `following` [B, T] is the token after each row. The first `accepted` [B] rows of each request count; what lies
        past them may leave garbage that the next window overwrites.
        """
