"""Accept length may not move when only speed should: in neither direction.

The surprise: a rise is as suspicious as a fall. Verification that accepts too much looks like luckier drafts,
and a step that skips work makes both the step cheaper and the drafts "better".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gates.evidence import GateResult

if TYPE_CHECKING:
    from gates.evidence import Accept

NAME = "accept_drift"
ROUNDING_SLACK = 1e-9  # a drift of exactly the bound passes, whatever the subtraction leaves in the last bit


def compare(baseline: Accept, candidate: Accept, *, bound: float, required: bool) -> GateResult:
    simulated = "simulated" in (baseline.source, candidate.source)
    if simulated:
        reason = "a simulated accept length says nothing about drift"
        return GateResult(name=NAME, status="not_run", required=required, reason=reason)
    drift = candidate.length - baseline.length
    passed = abs(drift) <= bound + ROUNDING_SLACK
    relation = "<=" if passed else ">"
    return GateResult(
        name=NAME,
        status="pass" if passed else "fail",
        required=required,
        reason=f"{baseline.length:.2f} -> {candidate.length:.2f}: |{drift:+.3f}| {relation} {bound:g}",
        evidence={"baseline": baseline.length, "candidate": candidate.length, "drift": drift, "bound": bound},
    )
