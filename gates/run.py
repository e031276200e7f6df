"""All gates on one live server: collect what can be collected, then compare.

The surprise: a server that fails here raises nothing. What could not be collected is `Missing` with its reason, and
each gate that needed it says `not_run`; the verdict turns that into an invalid cell. Never into a pass.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gates import arm, attached, check, lossless
from gates.applicability import REQUIRED
from gates.evidence import CellEvidence, GateResult, Missing
from gates.golden import Reference
from gates.judge import NOT_FORCED, comparisons, judge, judge_all, needs_of, switched_off

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from experiments.engines.interface import EngineClient
    from experiments.spec import CellSpec
    from gates.change import Change
    from gates.evidence import Accept, Probe, TaskAnswers

    Applied = tuple[tuple[GateResult, ...], CellEvidence]

NO_BASELINE = Missing("no baseline")


def apply(
    spec: CellSpec,
    change: Change | None,
    client: EngineClient,
    *,
    baseline: CellEvidence | None,
    accept: Accept | None,
    task: TaskAnswers | None,
    dataset: Path | None = None,
    golden: Reference | Missing = NO_BASELINE,
    baseline_client: EngineClient | None = None,
) -> Applied:
    """Every gate's result, in the order of the table, and the evidence that a later candidate needs.

    `change` None: nothing of this plan to compare with, but for a `golden` record of the model. `dataset`: the
    workload's texts in ShareGPT's form, which prompts are also taken from. `baseline_client`: a live baseline, which
    only the lossless gate asks for.
    """
    assert (change is None) == (baseline is None), "a change is a difference from a baseline"
    absent = golden if isinstance(golden, Missing) else NO_BASELINE
    needs = needs_of(spec, change, absent=absent.reason)
    if spec.gate.mode == "off":
        off = tuple(switched_off(name, need, why_off(accept)) for name, need in needs.items())
        return off, CellEvidence(accept=accept, task=task)
    if change is None and isinstance(golden, Reference):
        return check.against(
            golden, spec, client, accept=accept, task=task, hardware=lambda: attached.hardware_of(spec)
        )
    reference = baseline.probe if baseline else None
    theirs = arm.live(
        client,
        arm.attempt(lambda: arm.ask(spec.gate, client, reference, dataset)),
        requests=spec.gate.pollution_requests,
        accept=arm.given(accept, "no accept length"),
        task=arm.given(task, "no task was run"),
    )
    forced = forced_tokens(theirs.probe, baseline_client) if needs["lossless"].required else NOT_FORCED
    gates = judge_all(spec, change, arm.stored(baseline or CellEvidence()), theirs, needs, forced)
    return gates, theirs.evidence()


def why_off(accept: Accept | None) -> str:
    """Where acceptance is simulated, tokens are not the target's, and no gate has anything to look at."""
    return "gate=off: acceptance is simulated" if accept and accept.source == "simulated" else "gate=off"


def waits_for_baseline(results: Sequence[GateResult], own: CellEvidence) -> bool:
    """The lossless gate is required, and has all that it needs but a server of the baseline."""
    lacking = [gate for gate in results if gate.name == lossless.NAME and gate.required and gate.status == "not_run"]
    return bool(lacking) and own.probe is not None


def scored(
    results: Sequence[GateResult],
    spec: CellSpec,
    change: Change,
    baseline: CellEvidence,
    own: CellEvidence,
    baseline_client: EngineClient,
) -> tuple[GateResult, ...]:
    """`results`, with the lossless gate judged on a server of the baseline that was not there before."""
    ours, theirs = arm.stored(baseline), arm.stored(own)
    forced = forced_tokens(theirs.probe, baseline_client)
    judged = judge(lossless.NAME, REQUIRED, *comparisons(spec, change, ours, theirs, forced)[lossless.NAME])
    return tuple(judged if gate.name == lossless.NAME else gate for gate in results)


def forced_tokens(
    candidate: Probe | Missing, baseline_client: EngineClient | None
) -> tuple[lossless.Forced, ...] | Missing:
    if baseline_client is None:
        return Missing("no live baseline to force the tokens through")
    return arm.then(candidate, partial(lossless.collect, baseline_client))
