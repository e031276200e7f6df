"""Which gate binds which class of change; the table of the decision semantics, as data.

The surprise: what is required follows from the class and the engine alone, never from what happened to be collected. So
evidence that is missing turns a required gate into `not_run`, and cannot turn it into a gate that was not needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from gates.change import ChangeClass
    from gates.engine import EngineTraits

Level = Literal["required", "reported", "not_applicable"]
Rule = Literal["required", "reported", "never", "if_ours", "if_row_invariant", "unless_row_invariant", "if_task"]

TABLE: dict[str, dict[ChangeClass, Rule]] = {
    "byte_parity": {
        "same": "required",
        "bitwise": "required",
        "rounding": "reported",
        "speculation": "if_row_invariant",
        "model": "never",
    },
    "lossless": {
        "same": "never",
        "bitwise": "never",
        "rounding": "never",
        "speculation": "unless_row_invariant",
        "model": "never",
    },
    "logit_digest": {
        "same": "if_ours",
        "bitwise": "if_ours",
        "rounding": "reported",
        "speculation": "if_row_invariant",
        "model": "never",
    },
    "accept_drift": {
        "same": "required",
        "bitwise": "required",
        "rounding": "required",
        "speculation": "never",
        "model": "never",
    },
    "state_pollution": {
        "same": "required",
        "bitwise": "required",
        "rounding": "required",
        "speculation": "required",
        "model": "required",
    },
    "task_score": {
        "same": "if_task",
        "bitwise": "if_task",
        "rounding": "required",
        "speculation": "if_task",
        "model": "required",
    },
}
GATES = tuple(TABLE)


@dataclass(frozen=True)
class Need:
    level: Level
    reason: str = ""

    @property
    def required(self) -> bool:
        return self.level == "required"


REQUIRED = Need("required")
REPORTED = Need("reported")


def applicability(
    change: ChangeClass | None,
    engine: EngineTraits,
    *,
    task: bool,
    floor: float | None,
    absent: str = "no baseline",
) -> dict[str, Need]:
    """Need of every gate. `change` None: nothing to compare with, because `absent`; `task`: one is configured."""
    if change is None:
        return _alone(absent, task=task, floor=floor)
    return {gate: _resolve(gate, change, engine, task=task) for gate in GATES}


def elsewhere(needs: dict[str, Need]) -> dict[str, Need]:
    """The needs of a comparison across processors, whose bits differ without anybody's fault.

    Exactness cannot be asked for there, so what the table says of engines that cannot promise it holds: where byte
    parity or the digest was required it is reported, and lossless is required in its place.
    """
    exact = [gate for gate in ("byte_parity", "logit_digest") if needs[gate].required]
    return needs | dict.fromkeys(exact, REPORTED) | ({"lossless": REQUIRED} if exact else {})


def _alone(absent: str, *, task: bool, floor: float | None) -> dict[str, Need]:
    needs = dict.fromkeys(GATES, Need("not_applicable", absent))
    needs["state_pollution"] = REQUIRED
    if task and floor is not None:
        needs["task_score"] = REQUIRED
    return needs


def _resolve(gate: str, change: ChangeClass, engine: EngineTraits, *, task: bool) -> Need:
    match TABLE[gate][change]:
        case "required":
            return REQUIRED
        case "reported":
            return REPORTED
        case "never":
            return Need("not_applicable", f"a {change} change")
        case "if_ours":
            return REQUIRED if engine.ours else REPORTED
        case "if_row_invariant":
            return REQUIRED if engine.row_invariant else REPORTED
        case "unless_row_invariant":
            exact = Need("not_applicable", "byte parity is exact on a row-invariant engine")
            return exact if engine.row_invariant else REQUIRED
        case "if_task":
            return REQUIRED if task else Need("not_applicable", "no task configured")
