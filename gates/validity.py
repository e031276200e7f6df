"""Why a cell's numbers may not be used at all: faults, found before any gate or statistic speaks.

A fault makes a cell invalid, which is neither for nor against the change. The surprise: numbers that look too good end
here as well. An accept length above the window, or a speculative cell that reports no verify counts, is a broken
measurement and not a result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gates.applicability import GATES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from experiments.spec import SpeculationSpec
    from gates.evidence import Accept, GateResult

FaultClass = Literal["infrastructure", "inactive", "ruler", "gate_not_run", "impossible_value"]


@dataclass(frozen=True)
class Fault:
    class_: FaultClass
    reason: str


@dataclass(frozen=True, kw_only=True)
class Ruler:
    """Hashes of what measured a cell, and the load in words; arms measured by different rulers are not compared."""

    harness: str
    dataset: str
    prompt_order: str
    load: str


def ruler_faults(baseline: Ruler, candidate: Ruler) -> Iterator[Fault]:
    for name, reference in vars(baseline).items():
        observed = getattr(candidate, name)
        if observed != reference:
            yield Fault("ruler", f"{name} differs: baseline {reference}, candidate {observed}")


def accept_faults(speculation: SpeculationSpec, accept: Accept | None) -> Iterator[Fault]:
    if accept is None:
        yield Fault("impossible_value", f"{speculation.algorithm} cell without verify counts")
    elif not 1 <= accept.length <= speculation.window:
        bounds = f"[1, W = {speculation.window}]"
        yield Fault("impossible_value", f"accept length {accept.length:g} is outside {bounds}")


def activation_faults(expected: Mapping[str, object], observed: Mapping[str, object]) -> Iterator[Fault]:
    """What was asked for, by key of the spec, against what the server proved to run."""
    for key, asked in expected.items():
        if observed.get(key) != asked:
            yield Fault("inactive", f"{key}={asked} was asked for; active: {observed.get(key)}")


def gate_faults(gates: Sequence[GateResult]) -> Iterator[Fault]:
    """A gate without a result counts as one that did not run."""
    for name in sorted(set(GATES) - {gate.name for gate in gates}):
        yield Fault("gate_not_run", f"{name}: no result")
    for gate in gates:
        if gate.required and gate.status == "not_run":
            yield Fault("gate_not_run", f"{gate.name}: {gate.reason}")
