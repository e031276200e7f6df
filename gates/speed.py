"""The speed half of a verdict: which figure decides, what the floor hides, and where a gain came from.

The surprise: tokens per second are accept length over step time, so either factor can make up for the other. A step
that got cheaper exactly as accept length fell is no faster step, and is called a trade.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import expm1, isfinite
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from analysis.ab import ABResult
    from analysis.pairs import Figure
    from gates.change import ChangeClass

NAMES: dict[Figure, str] = {"step_time": "step time", "tpot": "TPOT", "accept": "accept length"}


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """What the author said would happen (`change.expect`); the margin is a ratio."""

    expect: Literal["faster", "equal"] = "faster"
    margin: float = 0.01


@dataclass(frozen=True)
class Outcome:
    verdict: Literal["keep", "reject", "inconclusive"]
    rule: str
    reason: str


def criterion(change: ChangeClass) -> Figure:
    """Speculation and model changes alter tokens per step, so for them only the time per token is comparable."""
    return "tpot" if change in ("speculation", "model") else "step_time"


def judge(change: ChangeClass, ab: ABResult, expectation: Expectation) -> Outcome:
    figure = criterion(change)
    ratio = ab.tpot if figure == "tpot" else ab.step_time
    shown = f"{NAMES[figure]} {ratio}"
    if ab.same_arms:
        return Outcome("inconclusive", "aa", f"A/A: {shown}")
    if expectation.expect == "equal" and ratio.inside(expectation.margin):
        return Outcome("keep", "equal", f"equal: {shown} inside {expectation.margin:.1%}")
    if ratio.decided and not ratio.beyond(ab.floor):
        return Outcome("inconclusive", "aa_floor", f"{shown} is within reach of the A/A floor of {ab.floor:.1%}")
    if figure == "step_time" and is_trade(ab):
        return Outcome("inconclusive", "trade", f"{shown}, but {source(ab)}")
    if ratio.below:
        return Outcome("keep", "faster", f"faster: {shown}; {source(ab)}")
    if ratio.above:
        return Outcome("reject", "slower", f"slower: {shown}; {source(ab)}")
    if not isfinite(ab.mde):
        return Outcome("inconclusive", "interval", f"{NAMES[figure]} {expm1(ratio.estimate):+.1%}: too few blocks")
    return Outcome("inconclusive", "interval", f"{shown} includes zero; minimum detectable effect {ab.mde:.1%}")


def is_trade(ab: ABResult) -> bool:
    """Step time and accept length moved the same way, and the time per token did not follow."""
    if ab.step_time.below:
        return ab.accept.below and not ab.tpot.below
    return ab.step_time.above and ab.accept.above and not ab.tpot.above


def source(ab: ABResult) -> str:
    """Which factor moved tokens per second, in words."""
    step, accept = f"step time {ab.step_time}", f"accept length {ab.accept}"
    if ab.tpot.decided:
        faster = ab.tpot.below
        cost, gain = (ab.step_time.below, ab.accept.above) if faster else (ab.step_time.above, ab.accept.below)
        match cost, gain:
            case True, True:
                return f"tokens per second changed by both, {step} and {accept}"
            case True, False:
                return f"tokens per second changed by step time alone; {accept}"
            case False, True:
                return f"tokens per second changed by accept length alone; {step}"
    if is_trade(ab):
        return f"{accept} moved with it: a trade, TPOT {ab.tpot}"
    return f"TPOT {ab.tpot}; {accept}"
