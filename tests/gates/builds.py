"""Real servers, clean or with a planted fault, and all gates on one of them."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.server import Server
from experiments.spec import (
    CellSpec,
    ChangeSpec,
    EngineSpec,
    GateSpec,
    ModelSpec,
    SpeculationSpec,
    TaskSpec,
    WorkloadSpec,
)
from gates.change import classify
from gates.evidence import Accept
from gates.prompts import canary_pool
from gates.run import apply
from gates.verdict import decide
from ling_runtime.ops.registry import Variant, variants

if TYPE_CHECKING:
    from experiments.clients.generate import GenerateClient
    from gates.evidence import CellEvidence, GateResult, TaskAnswers
    from gates.verdict import Verdict

CHECKPOINT = Path(__file__).parents[2] / "ling_runtime/checkpoints/ling_tiny"
NEXTN = SpeculationSpec(algorithm="nextn", num_steps=3, num_draft_tokens=4)
SHORT = GateSpec(parity_prompts=2, parity_tokens=32, pollution_requests=2)
VARIANTS = (*variants(), Variant("moe_combine", "last_bit", "bitwise", "", lambda: None))
"""The registry, and what the planted build adds to its own."""


def cell(fault: str = "none", **groups) -> CellSpec:
    """The shipped checkpoint under NEXTN 3/4, served by a build with `fault`."""
    kernels = {"moe_combine": "last_bit"} if fault == "one_bit" else {}
    base = CellSpec(
        engine=EngineSpec(command=(sys.executable, "-m", "tests.fakes.planted", fault)),
        model=ModelSpec(name="ling_tiny", path=str(CHECKPOINT)),
        speculation=NEXTN,
        workload=WorkloadSpec(name="none"),
        task=TaskSpec(),
        gate=SHORT,
        change=ChangeSpec(rounding="preserved"),
        kernels=kernels,
    )
    return replace(base, **groups)


@dataclass(frozen=True)
class Gated:
    gates: dict[str, GateResult]
    evidence: CellEvidence
    verdict: Verdict

    @property
    def failed(self) -> set[str]:
        return {name for name, gate in self.gates.items() if gate.status == "fail"}


def gate(
    client: GenerateClient,
    spec: CellSpec,
    baseline: CellEvidence | None = None,
    *,
    base_spec: CellSpec | None = None,
    task: TaskAnswers | None = None,
) -> Gated:
    """As a cell's measurement does: the accept length of a load first, then the gates."""
    change = None if baseline is None else classify(base_spec or cell(), spec, VARIANTS)
    accept = measure_accept(client)
    gates, evidence = apply(spec, change, client, baseline=baseline, accept=accept, task=task)
    return Gated({result.name: result for result in gates}, evidence, decide(change, gates))


def measure_accept(client: GenerateClient) -> Accept:
    answers = [client.generate(text=prompt.text, max_new_tokens=32, ignore_eos=True) for prompt in canary_pool()[:2]]
    steps = sum(answer.spec_verify_ct for answer in answers)
    return Accept(length=sum(len(answer.output_ids) - 1 for answer in answers) / steps, source="measured")


def gate_build(fault: str, log: Path, baseline: CellEvidence | None = None, gates: GateSpec = SHORT) -> Gated:
    """Start the build, gate it, stop it."""
    return gate_and_stop(started(fault, log, gates), fault, baseline, gates)


def started(fault: str, log: Path, gates: GateSpec) -> Server:
    """A ready server, which the caller stops. In the main thread, because the limit of a launch is an alarm."""
    server = Server(cell(fault, gate=gates), log=log)
    try:
        server.wait_ready(60)
    except BaseException:
        with server:
            raise
    return server


def gate_and_stop(server: Server, fault: str, baseline: CellEvidence | None, gates: GateSpec) -> Gated:
    with server:
        return gate(server.client, cell(fault, gate=gates), baseline)
