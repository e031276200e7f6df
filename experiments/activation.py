"""Was the change really on? What the spec asks for against what the server proves to run, whatever engine it is.

The surprise: a server that says nothing proves nothing. An inactive change is a perfect A/A, so what cannot be seen
makes a cell invalid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiments.engines.registry import engine_of
from gates.validity import activation_faults

if TYPE_CHECKING:
    from collections.abc import Mapping

    from experiments.spec import CellSpec
    from gates.validity import Fault


@dataclass(frozen=True)
class Activation:
    """By key of the spec: what was asked for, and what was seen to run."""

    expected: Mapping[str, Any]
    observed: Mapping[str, Any]

    @property
    def faults(self) -> tuple[Fault, ...]:
        return tuple(activation_faults(self.expected, self.observed))

    @property
    def reason(self) -> str | None:
        return "; ".join(fault.reason for fault in self.faults) or None

    def to_json(self) -> dict[str, Any]:
        """The activation part of a record."""
        return {
            "ok": not self.faults,
            "expected": dict(self.expected),
            "observed": dict(self.observed),
            "reason": self.reason,
        }


def prove(cell: CellSpec, info: Mapping[str, Any], log: str) -> Activation:
    """From what the server says of itself (`/server_info`) and what it has logged."""
    engine = engine_of(cell)
    return Activation(engine.expected(cell), engine.observed(cell, info, log))
