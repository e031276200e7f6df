"""All gates over the evidence of two arms, each by its need; pure.

The surprise: the needs are an argument. Who compares with a golden record, or on another processor, changes what is
required in one place and compares as everybody else does.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from gates import accept_drift, arm, byte_parity, logit_digest, lossless, state_pollution, task_score
from gates.applicability import applicability
from gates.engine import engine_traits
from gates.evidence import GateResult, Missing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from experiments.spec import CellSpec
    from gates.applicability import Need
    from gates.arm import Arm
    from gates.change import Change

    Forced = tuple[lossless.Forced, ...] | Missing
    Comparison = tuple[tuple[Any, ...], Callable[..., GateResult]]

NOT_FORCED = Missing("no tokens were forced")


def needs_of(spec: CellSpec, change: Change | None, *, absent: str = "no baseline") -> dict[str, Need]:
    """`absent`: why there is nothing to compare with, where `change` is None."""
    return applicability(
        change.class_ if change else None,
        engine_traits(spec.engine.name),
        task=spec.task.name != "none",
        floor=spec.task.floor,
        absent=absent,
    )


def judge_all(
    spec: CellSpec, change: Change | None, ours: Arm, theirs: Arm, needs: Mapping[str, Need], forced: Forced
) -> tuple[GateResult, ...]:
    """In the order of the table."""
    pairs = comparisons(spec, change, ours, theirs, forced)
    return tuple(judge(name, need, *pairs[name]) for name, need in needs.items())


def comparisons(spec: CellSpec, change: Change | None, ours: Arm, theirs: Arm, forced: Forced) -> dict[str, Comparison]:
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


def switched_off(name: str, need: Need, why: str = "gate=off") -> GateResult:
    """Stays required, so that nothing is kept on the strength of a gate that was switched off."""
    return GateResult(name=name, status="not_applicable", required=need.required, reason=need.reason or why)
