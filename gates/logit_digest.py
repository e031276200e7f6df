"""Logit bits at recorded positions: sees a numerics change long before it flips a token.

The surprise: equal tokens prove little. Slight damage can leave every greedy choice of a long answer alone; it does not
leave the bits of the logits alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gates.byte_parity import comparable
from gates.evidence import GateResult

if TYPE_CHECKING:
    from gates.evidence import Output, Probe

NAME = "logit_digest"


def compare(baseline: Probe, candidate: Probe, *, required: bool) -> GateResult:
    problem = comparable(baseline, candidate)
    positions = sum(len(output.digest) for output in baseline.outputs)
    if problem or not positions:
        reason = problem or "the baseline recorded no positions"
        return GateResult(name=NAME, status="not_run", required=required, reason=reason)
    pairs = zip(baseline.outputs, candidate.outputs, strict=True)
    found = [difference for ours, theirs in pairs if (difference := first_difference(ours, theirs))]
    canaries = sum(prompt.canary for prompt in baseline.prompts)
    evidence = {"positions": positions, "canaries": canaries, "differences": found}
    if found:
        first = found[0]
        reason = f"{len(found)} prompts differ; first: {first['prompt']} at {first['position']} ({first['what']})"
        return GateResult(name=NAME, status="fail", required=required, reason=reason, evidence=evidence)
    reason = f"top-5 ids and logit bits equal at {positions} positions ({canaries} canary prompts)"
    return GateResult(name=NAME, status="pass", required=required, reason=reason, evidence=evidence)


def first_difference(baseline: Output, candidate: Output) -> dict[str, Any] | None:
    """After it the rest of a prompt tells nothing new, so only the first is reported."""
    theirs = {row.position: row for row in candidate.digest}
    for ours in baseline.digest:
        row = theirs.get(ours.position)
        if row != ours:
            what = "missing" if row is None else "ids" if row.ids != ours.ids else "bits"
            return {"prompt": baseline.prompt, "position": ours.position, "what": what}
    extra = sorted(theirs.keys() - {row.position for row in baseline.digest})
    return {"prompt": baseline.prompt, "position": extra[0], "what": "extra"} if extra else None
