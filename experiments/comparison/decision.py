"""The record of one decision: its directory beside the cells it is about, its identity, what goes into it.

The surprise: it is valid long before anything is timed where a gate has spoken. A candidate that failed a required gate
is rejected on that evidence, and its record says so with no comparison in it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from experiments import environment
from experiments.comparison.patch import difference
from experiments.comparison.spec import ABSpec, Declared
from experiments.failure import unfinished
from experiments.record import FILE, SCHEMA, now, number
from gates.evidence import GateResult

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Literal

    from experiments.plan import Invocation
    from experiments.preparation import Prepared
    from gates.change import Change
    from gates.verdict import Verdict

    Kind = Literal["ab", "change", "leave_one_out"]

ARMS = ("baseline", "candidate")


@dataclass(frozen=True, kw_only=True)
class Question:
    """Two cells and what was said about their difference."""

    name: str
    kind: Kind
    declared: Declared
    overrides: tuple[str, ...]
    change: Change
    baseline: Prepared
    candidate: Prepared

    @property
    def same_arms(self) -> bool:
        return not difference(self.baseline.cell.spec, self.candidate.cell.spec)

    def identity(self, settings: ABSpec) -> str:
        """Hash of all that a valid decision depends on; cells' identities carry code, data and declarations."""
        told = {field.name for field in fields(Declared)} | set(ARMS)
        values = {key: value for key, value in asdict(settings).items() if key not in told}
        text = json.dumps([self.kind, self.baseline.identity, self.candidate.identity, values], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def opening(
    question: Question,
    settings: ABSpec,
    *,
    directory: Path,
    study: str,
    invocation: Invocation,
    records: dict[str, str],
) -> dict[str, Any]:
    """Before the decision is made: invalid, and all that is known. `records` are the arms', seen from the study's."""
    declared = question.declared
    return {
        "schema": SCHEMA,
        "kind": question.kind,
        "name": question.name,
        "study": study,
        "attempt": number(directory),
        "invocation": asdict(invocation),
        "identity": question.identity(settings),
        "status": "invalid",
        "failure": unfinished(),
        "verdict": None,
        "rule": "infrastructure",
        "reason": "unfinished",
        "hypothesis": declared.hypothesis,
        "expect": declared.expect,
        "equal_margin": declared.equal_margin,
        "accept_bound": declared.accept_bound,
        "overrides": [*question.overrides],
        "change": {
            "class": question.change.class_,
            "parts": [*question.change.parts],
            "declared": question.change.declared,
            "reason": question.change.reason,
        },
        "arms": {arm: _arm(getattr(question, arm), records.get(arm)) for arm in ARMS},
        "same_arms": question.same_arms,
        "gates": {},
        "criterion": None,
        "comparison": None,
        "figures": None,
        "effect": None,
        "floor": None,
        "blocks": None,
        "activation": None,
        "ruler": None,
        "flags": [],
        "environment": environment.summary(environment.capture()),
        "started_utc": now(),
        "ended_utc": None,
        "duration_s": None,
        "stages": {},
    }


def concluded(verdict: Verdict, candidate: dict[str, Any] | None) -> dict[str, Any]:
    """What every decision that was made changes in its record; `candidate` is that cell's."""
    return asdict(verdict) | {
        "failure": None,
        "gates": candidate["gates"] if candidate else {},
        "flags": candidate["flags"] if candidate else [],
    }


def gates(candidate: dict[str, Any]) -> tuple[GateResult, ...]:
    return tuple(GateResult(name=name, **entry) for name, entry in candidate["gates"].items())


def _arm(item: Prepared, record: str | None) -> dict[str, Any]:
    return {"cell": item.cell.name, "identity": item.identity, "record": record and f"{record}/{FILE}"}
