"""What is compared with what, and how long: the keys `mode`, `ab` and `campaign`, frozen and typed.

The surprise: an entry's declaration (`rounding`, `reason`, `accept_bound`, `expect`) stands beside its overrides and
not among them. It says something about the difference, so it belongs to a change and to no cell.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from experiments.spec import ChangeSpec


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What the author of a change says about it before it is measured."""

    hypothesis: str | None = None
    """In words: what it should do, and why."""
    expect: Literal["faster", "equal"] = "faster"
    equal_margin: float = 0.01
    rounding: Literal["preserved", "declared"] | None = None
    reason: str | None = None
    """Why rounding may differ."""
    accept_bound: float = 0.05

    @property
    def change(self) -> ChangeSpec:
        """As the gates read it."""
        return ChangeSpec(
            rounding=self.rounding,
            reason=self.reason,
            accept_bound=self.accept_bound,
            expect=self.expect,
            equal_margin=self.equal_margin,
        )


@dataclass(frozen=True, kw_only=True)
class ABSpec(Declared):
    """The arms of `mode=ab`, and how any two arms are timed."""

    baseline: tuple[str, ...] = ()
    """Overrides."""
    candidate: tuple[str, ...] = ()
    """Overrides, of the same configuration as the baseline's."""
    budget_s: float = 600.0
    """Of the blocks of one comparison; launches and gates come on top."""
    prompts: int = 4
    """Of one block, each asked in all of its four slots."""
    seed: int = 1
    """Of the coin that orders each block."""
    servers: Literal["auto", "together", "in_turn"] = "auto"
    """auto: both alive at once if memory suffices; they are asked one at a time in any case."""
    start: Literal["in_turn", "at_once"] = "in_turn"
    """at_once: servers that are alive together are also launched together, which halves what launches cost. For engines
    that take the memory they need; one that sizes itself by what it finds free would see half of the other's.
    """
    launch_blocks: int = 12
    """After so many both are launched anew where they are alive at once, so that what a launch draws averages out; 0:
    never."""
    floor_runs: int = 3
    """A/A runs that make the floor where there is none, each with servers of its own."""
    floor_blocks: int = 12
    floor_days: float = 7.0
    """Age from which a floor is refused and measured anew."""


@dataclass(frozen=True, kw_only=True)
class Entry(Declared):
    """One change of a campaign."""

    name: str
    overrides: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CampaignSpec:
    changes: tuple[Entry, ...] = ()
    """In the order in which they are tried, each against the best so far."""
    leave_one_out: bool = True
    """At the end, what is each kept change worth among the others?"""


@dataclass(frozen=True, kw_only=True)
class Modes:
    mode: Literal["cells", "ab", "campaign"] = "cells"
    ab: ABSpec = field(default_factory=ABSpec)
    campaign: CampaignSpec = field(default_factory=CampaignSpec)
