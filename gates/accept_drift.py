"""Accept length may not move when only speed should: in neither direction.

The surprise: a rise is as suspicious as a fall. Verification that accepts too much looks like luckier drafts,
and a step that skips work makes both the step cheaper and the drafts "better".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gates.evidence import Accept, GateResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.spec import SpeculationSpec
    from gates.change import Change
    from gates.evidence import Output

NAME = "accept_drift"
BOUND = 0.05
ROUNDING_SLACK = 1e-9  # a drift of exactly the bound passes, whatever the subtraction leaves in the last bit


def bound_of(change: Change | None, configured: float) -> float:
    """`change.accept_bound` belongs to a rounding change; no other may widen its bound by asking."""
    return configured if change is not None and change.class_ == "rounding" else BOUND


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


def over(outputs: Sequence[Output], speculation: SpeculationSpec) -> Accept | None:
    """Accept length over a probe's answers, for comparisons that no benchmark measured. None: counts are missing."""
    if speculation.algorithm == "none":
        return Accept(length=1.0, source="definition")
    counts = [output.spec_verify_ct for output in outputs]
    verifies = sum(count for count in counts if count is not None)
    if None in counts or not verifies:
        return None
    return Accept(length=sum(len(output.ids) - 1 for output in outputs) / verifies, source="measured")
