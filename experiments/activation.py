"""Was the change really on? What the spec asks for against what the server proves to run, whatever engine it is.

The surprise: a server that says nothing proves nothing. An inactive change is a perfect A/A, so what cannot be seen
makes a cell invalid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments.engines.registry import engine_of
from gates.validity import activation_faults

if TYPE_CHECKING:
    from collections.abc import Mapping

    from experiments.spec import CellSpec
    from gates.validity import Fault


def faults(cell: CellSpec, info: Mapping[str, Any], log: str) -> tuple[Fault, ...]:
    engine = engine_of(cell)
    return tuple(activation_faults(engine.expected(cell), engine.observed(cell, info, log)))


def proof(cell: CellSpec, info: Mapping[str, Any], log: str) -> dict[str, Any]:
    """The activation part of a record."""
    engine, found = engine_of(cell), faults(cell, info, log)
    return {
        "ok": not found,
        "expected": engine.expected(cell),
        "observed": engine.observed(cell, info, log),
        "reason": "; ".join(fault.reason for fault in found) or None,
    }
