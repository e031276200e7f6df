"""The audit of one cell: what its engine finds in the launch, and what can be said of any engine's cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.audit.claims import audit_claims
from experiments.audit.finding import worst_first
from experiments.engines.registry import engine_of

if TYPE_CHECKING:
    from experiments.audit.finding import Finding
    from experiments.spec import CellSpec, ClaimSpec


def audit(cell: CellSpec, claims: ClaimSpec) -> tuple[Finding, ...]:
    """Of a completed cell."""
    return worst_first([*engine_of(cell).audit(cell), *audit_claims(cell, claims)])
