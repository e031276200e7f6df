"""From evidence to a verdict and an exit code, as pure functions.

Validity before gates, gates before statistics. The surprise: a required gate that could not decide (too few questions,
gates switched off) does not reject, and does not let anything be kept either.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from gates.speed import Expectation, judge
from gates.validity import Fault, gate_faults

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from analysis.ab import ABResult
    from gates.change import Change
    from gates.evidence import GateResult

Decision = Literal["baseline", "keep", "reject", "inconclusive"]
OK, REJECTED, CONFIGURATION, INVALID = 0, 1, 2, 3
SEVERITY = (OK, REJECTED, INVALID, CONFIGURATION)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """`verdict` is None exactly where `status` is invalid. `rule` is the short name of the rule that decided."""

    status: Literal["valid", "invalid"]
    verdict: Decision | None
    rule: str
    reason: str

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Verdict:
        """As a record has it, under its own names among others."""
        return cls(**{one.name: record[one.name] for one in fields(cls)})


def decide(
    change: Change | None,
    gates: Sequence[GateResult],
    *,
    faults: Iterable[Fault] = (),
    ab: ABResult | None = None,
    expectation: Expectation | None = None,
    golden: str | None = None,
) -> Verdict:
    """`change` None: the cell has no baseline, but perhaps a `golden` record that the gates compared it with.

    `faults`: what else speaks against the measurement itself.
    """
    found = [*faults, *gate_faults(gates)]
    if found:
        reason = "; ".join(fault.reason for fault in found)
        return Verdict(status="invalid", verdict=None, rule=found[0].class_, reason=reason)
    failed = [gate for gate in gates if gate.required and gate.status == "fail"]
    if failed:
        against = f" (against the golden record of {golden})" if golden else ""
        return _valid("reject", f"gate:{failed[0].name}", _list(failed) + against)
    if change is None and golden:
        return _valid("baseline", "golden", f"passed against the golden record of {golden}")
    if change is None:
        return _valid("baseline", "no_baseline", "nothing to compare with")
    undecided = [gate for gate in gates if gate.required and gate.status == "not_applicable"]
    if ab is None:
        open_ = f"; undecided: {_list(undecided)}" if undecided else ""
        return _valid("inconclusive", "no_ab", f"gates passed, no A/B{open_}")
    speed = judge(change.class_, ab, expectation or Expectation())
    if speed.verdict == "keep" and undecided:
        return _valid("inconclusive", "gate_undecided", f"{_list(undecided)}; {speed.reason}")
    return _valid(speed.verdict, speed.rule, speed.reason)


def exit_code(cells: Iterable[Verdict], *, configuration_error: bool = False) -> int:
    """The worst of the cells: 2 configuration, then 3 some cell invalid, 1 some cell rejected, 0."""
    codes = [CONFIGURATION] if configuration_error else [OK]
    codes += [_code(cell) for cell in cells]
    return max(codes, key=SEVERITY.index)


def _valid(verdict: Decision, rule: str, reason: str) -> Verdict:
    return Verdict(status="valid", verdict=verdict, rule=rule, reason=reason)


def _list(gates: Iterable[GateResult]) -> str:
    return "; ".join(f"{gate.name}: {gate.reason}" for gate in gates)


def _code(cell: Verdict) -> int:
    if cell.status == "invalid":
        return INVALID
    return REJECTED if cell.verdict == "reject" else OK
