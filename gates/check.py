"""A live server against a golden record: the record's own prompts again, whatever the built-in set is today.

The surprise: on another processor the bits may differ and nobody is to blame. So the hardware is asked about only when
a bit does differ, and if it is not the record's, the near-tie rule takes the place of equality: the record's tokens are
forced through the server, and the server's own where they part, and each has to be the server's best or nearly so.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from gates import accept_drift, arm, lossless, probe
from gates.applicability import Need, elsewhere
from gates.evidence import CellEvidence, GateResult, Missing, Probe
from gates.judge import NOT_FORCED, judge_all, needs_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from experiments.engines.interface import EngineClient
    from experiments.spec import CellSpec
    from gates.arm import Arm
    from gates.evidence import Accept, TaskAnswers
    from gates.golden import Golden, Reference
    from gates.hardware import Hardware

    Checked = tuple[tuple[GateResult, ...], CellEvidence]

EXACT = ("byte_parity", "logit_digest")
NO_TASK = "the golden record has no task answers"
OTHER_TASK = "the golden record answered other questions"
NOT_ASKED = "no task configured"


def record(
    spec: CellSpec, client: EngineClient, task: TaskAnswers | None = None, dataset: Path | None = None
) -> Checked:
    """What can be asked of a server alone, and its evidence."""
    theirs = arm.live(
        client,
        arm.attempt(lambda: arm.ask(spec.gate, client, None, dataset)),
        requests=spec.gate.pollution_requests,
        accept=Missing("nothing was measured"),
        task=arm.given(task, NOT_ASKED),
    )
    needs = needs_of(spec, None)
    return judge_all(spec, None, arm.stored(CellEvidence()), theirs, needs, NOT_FORCED), theirs.evidence()


def against(
    reference: Reference,
    spec: CellSpec,
    client: EngineClient,
    *,
    accept: Accept | None,
    task: TaskAnswers | None,
    hardware: Callable[[], Hardware],
) -> Checked:
    """`accept` and `task` were measured on this server; `hardware` says where it runs.

    Accept length drifts from the record's over the record's prompts, never from a benchmark's.
    """
    golden, change = reference.golden, reference.change
    known = golden.evidence.probe
    assert known is not None, "a golden record has a probe"
    theirs = arm.live(
        client,
        arm.attempt(partial(probe.again, client, known)),
        requests=spec.gate.pollution_requests,
        accept=arm.given(accept, "no accept length"),
        task=arm.given(task, NOT_ASKED),
    )
    arms = drifting(golden, spec, theirs)
    needs = golden_needs(spec, reference, arms)
    gates = judge_all(spec, change, *arms, needs, forced(client, known, theirs, needs))
    if any(gate.name in EXACT and gate.required and gate.status == "fail" for gate in gates):
        place = hardware()
        if not place.same_bits(golden.hardware):
            needs = elsewhere(needs)
            judged = judge_all(spec, change, *arms, needs, forced(client, known, theirs, needs))
            gates = tuple(explained(gate, golden, place) for gate in judged)
    wanted = needs_of(spec, change)["task_score"].required
    return tuple(undecided(gate) if wanted else gate for gate in gates), theirs.evidence()


def drifting(golden: Golden, spec: CellSpec, theirs: Arm) -> tuple[Arm, Arm]:
    """Both arms with the accept length over the prompts they answer alike: other tokens are accepted otherwise."""
    same = golden.evidence.task is not None and incomparable(golden, theirs) is None
    ours = replace(arm.stored(golden.evidence), task=golden.evidence.task if same else None)
    if isinstance(theirs.probe, Missing):
        return ours, replace(theirs, accept=theirs.probe)
    assert isinstance(ours.probe, Probe)
    pairs = zip(ours.probe.outputs, theirs.probe.outputs, strict=True)
    alike = [(a, b) for a, b in pairs if a.ids == b.ids]
    if not alike:
        return replace(ours, accept=Missing("no answer is the record's")), theirs
    sides = zip((ours, theirs), zip(*alike, strict=True), (golden.speculation, spec.speculation), strict=True)
    measured = [
        replace(side, accept=arm.given(accept_drift.over(outputs, speculation), "speculation without verify counts"))
        for side, outputs, speculation in sides
    ]
    return measured[0], measured[1]


def golden_needs(spec: CellSpec, reference: Reference, arms: tuple[Arm, Arm]) -> dict[str, Need]:
    """As of any change, but that a record may lack the task's answers, and that answers all different have no drift."""
    needs = needs_of(spec, reference.change)
    if isinstance(arms[0].accept, Missing) and not isinstance(arms[1].probe, Missing):
        needs["accept_drift"] = Need("not_applicable", arms[0].accept.reason)
    if absent := incomparable(reference.golden, arms[1]):
        needs["task_score"] = needs_of(spec, None, absent=absent)["task_score"]
    return needs


def incomparable(golden: Golden, theirs: Arm) -> str | None:
    """Why the record says nothing of the task that was run; None if it does."""
    known, answered = golden.evidence.task, theirs.task
    if known is None:
        return NO_TASK
    if answered is None or isinstance(answered, Missing):
        return NOT_ASKED
    return None if (known.name, known.data_hash) == (answered.name, answered.data_hash) else OTHER_TASK


def forced(
    client: EngineClient, known: Probe, theirs: Arm, needs: dict[str, Need]
) -> tuple[lossless.Forced, ...] | Missing:
    """The record's answers through the live server, and then the server's own that differ."""
    if not needs["lossless"].required:
        return NOT_FORCED
    return arm.then(theirs.probe, lambda answered: forced_both(client, known, answered))


def forced_both(client: EngineClient, known: Probe, answered: Probe) -> tuple[lossless.Forced, ...]:
    different = [ours.ids != theirs.ids for ours, theirs in zip(known.outputs, answered.outputs, strict=True)]
    parted = Probe(
        prompts=tuple(prompt for prompt, differs in zip(answered.prompts, different, strict=True) if differs),
        max_new_tokens=answered.max_new_tokens,
        outputs=tuple(output for output, differs in zip(answered.outputs, different, strict=True) if differs),
    )
    return (*lossless.collect(client, known), *lossless.collect(client, parted))


def explained(gate: GateResult, golden: Golden, place: Hardware) -> GateResult:
    if gate.name not in EXACT:
        return gate
    return replace(gate, reason=f"{gate.reason}; recorded on {golden.hardware}, this is {place}")


def undecided(gate: GateResult) -> GateResult:
    """A task gate that the class of change wants and a record cannot serve stays required, and undecided."""
    return replace(gate, required=True) if gate.name == "task_score" else gate
