"""One call from a toy server to gates, evidence and verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fabricate import VARIANTS, cell

from experiments.spec import GateSpec
from gates.change import classify
from gates.evidence import Accept
from gates.run import apply
from gates.verdict import decide

if TYPE_CHECKING:
    from toy_client import ToyClient

    from gates.evidence import CellEvidence

SHORT = GateSpec(parity_prompts=3, parity_tokens=24, pollution_requests=3)
SPEC = cell(gate=SHORT)
TWO = Accept(length=2.0, source="measured")


def run(client: ToyClient, baseline: CellEvidence | None = None, spec=SPEC, base_spec=SPEC, **given):
    """(results by name, evidence, verdict)"""
    change = None if baseline is None else classify(base_spec, spec, VARIANTS)
    inputs = {"accept": TWO, "task": None} | given
    gates, evidence = apply(spec, change, client, baseline=baseline, **inputs)
    return {gate.name: gate for gate in gates}, evidence, decide(change, gates)
