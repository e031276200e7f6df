"""All gates on one live server: collect what can be collected, then compare.

The surprise: a server that fails here raises nothing. What could not be collected is `Missing` with its reason, and
each gate that needed it says `not_run`; the verdict turns that into an invalid cell. Never into a pass.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from gates import accept_drift, arm, byte_parity, logit_digest, lossless, state_pollution, task_score
from gates.applicability import applicability
from gates.engine import engine_traits
from gates.evidence import CellEvidence, GateResult, Missing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from experiments.clients.generate import GenerateClient
    from experiments.spec import CellSpec
    from gates.applicability import Need
    from gates.arm import Arm
    from gates.change import Change
    from gates.evidence import Accept, Probe, TaskAnswers

    Comparison = tuple[tuple[Any, ...], Callable[..., GateResult]]


def apply(
    spec: CellSpec,
    change: Change | None,
    client: GenerateClient,
    *,
    baseline: CellEvidence | None,
    accept: Accept | None,
    task: TaskAnswers | None,
    dataset: Path | None = None,
    baseline_client: GenerateClient | None = None,
) -> tuple[tuple[GateResult, ...], CellEvidence]:
    """Every gate's result, in the order of the table, and the evidence that a later candidate needs.

    `change` None: nothing to compare with. `dataset`: the workload's texts in ShareGPT's form, which prompts are also
    taken from. `baseline_client`: a live baseline, which only the lossless gate asks for.
    """
    assert (change is None) == (baseline is None), "a change is a difference from a baseline"
    if spec.gate.mode == "off":
        needs = needs_of(spec, change)
        return tuple(switched_off(name, need) for name, need in needs.items()), CellEvidence(accept=accept, task=task)
    reference = baseline.probe if baseline else None
    theirs = arm.live(
        client,
        arm.attempt(lambda: arm.ask(spec.gate, client, reference, dataset)),
        requests=spec.gate.pollution_requests,
        accept=arm.given(accept, "no accept length"),
        task=arm.given(task, "no task was run"),
    )
    return judge_all(spec, change, baseline, theirs, baseline_client), theirs.evidence()


def judge_all(
    spec: CellSpec,
    change: Change | None,
    baseline: CellEvidence | None,
    theirs: Arm,
    baseline_client: GenerateClient | None = None,
) -> tuple[GateResult, ...]:
    needs = needs_of(spec, change)
    ours = arm.stored(baseline or CellEvidence())
    forced = forced_tokens(theirs.probe, baseline_client) if needs["lossless"].required else Missing("not needed")
    pairs = comparisons(spec, change, ours, theirs, forced)
    return tuple(judge(name, need, *pairs[name]) for name, need in needs.items())


def needs_of(spec: CellSpec, change: Change | None) -> dict[str, Need]:
    return applicability(
        change.class_ if change else None,
        engine_traits(spec.engine.name),
        task=spec.task.name != "none",
        floor=spec.task.floor,
    )


def comparisons(
    spec: CellSpec, change: Change | None, ours: Arm, theirs: Arm, forced: tuple[lossless.Forced, ...] | Missing
) -> dict[str, Comparison]:
    """What each gate compares, and how. Without a baseline only a floor binds the task."""
    near_tie = lossless.near_tie(spec.engine.dtype, spec.gate.near_tie)
    tie = arm.given(near_tie, f"gate.near_tie has no default for engine.dtype={spec.engine.dtype}")
    probes = ours.probe, theirs.probe
    drift = partial(accept_drift.compare, bound=accept_drift.bound_of(change, spec.change.accept_bound))
    score = partial(task_score.compare, floor=spec.task.floor)
    pollution = partial(state_pollution.compare, exact=engine_traits(spec.engine.name).row_invariant)
    return {
        "byte_parity": (probes, byte_parity.compare),
        "lossless": ((*probes, forced, tie), lossless.compare),
        "logit_digest": (probes, logit_digest.compare),
        "accept_drift": ((ours.accept, theirs.accept), drift),
        "state_pollution": ((theirs.pollution,), pollution),
        "task_score": ((None if change is None else ours.task, theirs.task), score),
    }


def judge(name: str, need: Need, inputs: tuple[Any, ...], compare: Callable[..., GateResult]) -> GateResult:
    if need.level == "not_applicable":
        return GateResult(name=name, status="not_applicable", required=False, reason=need.reason)
    missing = [part.reason for part in inputs if isinstance(part, Missing)]
    if missing:
        return GateResult(name=name, status="not_run", required=need.required, reason="; ".join(missing))
    return compare(*inputs, required=need.required)


def forced_tokens(
    candidate: Probe | Missing, baseline_client: GenerateClient | None
) -> tuple[lossless.Forced, ...] | Missing:
    if baseline_client is None:
        return Missing("no live baseline to force the tokens through")
    return arm.then(candidate, partial(lossless.collect, baseline_client))


def switched_off(name: str, need: Need) -> GateResult:
    """Stays required, so that nothing is kept on the strength of a gate that was switched off."""
    return GateResult(name=name, status="not_applicable", required=need.required, reason=need.reason or "gate=off")
