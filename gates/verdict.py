"""From evidence to a verdict and an exit code, as pure functions.

Validity before gates, gates before statistics. The surprise: a required gate that could not decide (too few questions,
gates switched off) does not reject, and does not let anything be kept either.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import expm1
from typing import TYPE_CHECKING, Literal

from gates.validity import Fault, gate_faults

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gates.change import Change, ChangeClass
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


@dataclass(frozen=True, kw_only=True)
class LogRatio:
    """log(candidate / baseline) with its interval; below zero is faster."""

    estimate: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{expm1(self.estimate):+.2%} [{expm1(self.low):+.2%}, {expm1(self.high):+.2%}]"


@dataclass(frozen=True, kw_only=True)
class ABResult:
    step_time: LogRatio
    tpot: LogRatio
    floor: float
    """The machine's A/A floor as a ratio: 0.012 is 1.2 %."""
    mde: float
    """Minimum detectable effect of this run, as a ratio."""
    same_arms: bool
    """Both arms ran the same cell on the same code."""


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """What the author said would happen (`change.expect`); the margin is a ratio."""

    expect: Literal["faster", "equal"] = "faster"
    margin: float = 0.01


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
    speed = _speed(change.class_, ab, expectation or Expectation())
    if speed.verdict == "keep" and undecided:
        return _valid("inconclusive", "gate_undecided", f"{_list(undecided)}; {speed.reason}")
    return speed


def criterion(change: ChangeClass, ab: ABResult) -> tuple[str, LogRatio]:
    """Speculation and model changes alter tokens per step, so for them only the time per token is comparable."""
    return ("TPOT", ab.tpot) if change in ("speculation", "model") else ("step time", ab.step_time)


def exit_code(cells: Iterable[Verdict], *, configuration_error: bool = False) -> int:
    """The worst of the cells: 2 configuration, then 3 some cell invalid, 1 some cell rejected, 0."""
    codes = [CONFIGURATION] if configuration_error else [OK]
    codes += [_code(cell) for cell in cells]
    return max(codes, key=SEVERITY.index)


def _speed(change: ChangeClass, ab: ABResult, expectation: Expectation) -> Verdict:
    name, ratio = criterion(change, ab)
    shown = f"{name} {ratio}"
    if ab.same_arms:
        return _valid("inconclusive", "aa", f"A/A: {shown}")
    if expectation.expect == "equal" and max(abs(expm1(ratio.low)), abs(expm1(ratio.high))) <= expectation.margin:
        return _valid("keep", "equal", f"equal: {shown} inside {expectation.margin:.1%}")
    if abs(expm1(ratio.estimate)) <= ab.floor:
        return _valid("inconclusive", "aa_floor", f"{shown} is inside the A/A floor of {ab.floor:.1%}")
    if ratio.high < 0:
        return _valid("keep", "faster", f"faster: {shown}")
    if ratio.low > 0:
        return _valid("reject", "slower", f"slower: {shown}")
    return _valid("inconclusive", "interval", f"{shown} includes zero; minimum detectable effect {ab.mde:.1%}")


def _valid(verdict: Decision, rule: str, reason: str) -> Verdict:
    return Verdict(status="valid", verdict=verdict, rule=rule, reason=reason)


def _list(gates: Iterable[GateResult]) -> str:
    return "; ".join(f"{gate.name}: {gate.reason}" for gate in gates)


def _code(cell: Verdict) -> int:
    if cell.status == "invalid":
        return INVALID
    return REJECTED if cell.verdict == "reject" else OK
