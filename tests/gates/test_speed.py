"""The speed half of a verdict: trades, sources of a gain, and the reach of the floor."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from fabricate import ab, change, results
from hypothesis import given
from hypothesis import strategies as st

from analysis.logratio import LogRatio
from gates.speed import Expectation, criterion, judge, source
from gates.verdict import decide

DOWN, UP, FLAT = (-0.04, -0.05, -0.03), (0.04, 0.03, 0.05), (0.0, -0.004, 0.004)
INTERVALS = st.tuples(st.floats(-0.1, 0.1), st.floats(0, 0.05), st.floats(0, 0.05)).map(
    lambda parts: (parts[0], parts[0] - parts[1], parts[0] + parts[2])
)


@pytest.mark.parametrize("class_", ["same", "bitwise", "rounding"])
def test_a_step_that_got_cheaper_as_accept_length_fell_is_a_trade(class_) -> None:
    for moved in (DOWN, UP):
        outcome = judge(class_, ab(step=moved, accept=moved, tpot=FLAT), Expectation())
        assert (outcome.verdict, outcome.rule) == ("inconclusive", "trade")
        assert "accept length" in outcome.reason
        assert "a trade" in outcome.reason


def test_a_trade_that_gains_on_balance_is_kept() -> None:
    outcome = judge("same", ab(step=(-0.06, -0.07, -0.05), accept=(-0.01, -0.012, -0.008), tpot=DOWN), Expectation())
    assert outcome.verdict == "keep"
    assert "by step time alone" in outcome.reason


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({"step": DOWN, "tpot": DOWN}, "changed by step time alone"),
        ({"step": FLAT, "tpot": DOWN, "accept": UP}, "changed by accept length alone"),
        ({"step": UP, "tpot": DOWN, "accept": (0.08, 0.07, 0.09)}, "changed by accept length alone"),
        ({"step": DOWN, "tpot": (-0.08, -0.09, -0.07), "accept": UP}, "changed by both"),
        ({"step": FLAT, "tpot": UP, "accept": DOWN}, "changed by accept length alone"),
        ({"step": UP, "tpot": UP}, "changed by step time alone"),
    ],
)
def test_the_source_of_a_gain_or_loss_is_named(figures, said) -> None:
    assert said in source(ab(**figures))


def test_fixture_18_names_accept_length_as_the_source() -> None:
    outcome = judge("speculation", ab(step=UP, tpot=DOWN, accept=(0.08, 0.07, 0.09)), Expectation())
    assert (outcome.verdict, outcome.rule) == ("keep", "faster")
    assert "accept length alone" in outcome.reason


def test_too_few_blocks_are_called_that_and_no_interval_around_zero() -> None:
    unbounded = replace(ab(step=(0.3, -math.inf, math.inf), tpot=FLAT, accept=FLAT), mde=math.inf)
    outcome = judge("same", unbounded, Expectation())
    assert (outcome.verdict, outcome.reason) == ("inconclusive", "step time +35.0%: too few blocks")


def test_the_floor_and_the_interval_reach_together() -> None:
    """2 % with an interval of 1.5 % and a floor of 1.5 %: each alone is passed, both in squares are not."""
    step = (-0.02, -0.035, -0.005)
    assert judge("same", ab(step=step, floor=0.0), Expectation()).verdict == "keep"
    held = judge("same", ab(step=step, floor=0.015), Expectation())
    assert (held.verdict, held.rule) == ("inconclusive", "aa_floor")


@given(INTERVALS, INTERVALS, INTERVALS, st.floats(0, 0.1), st.sampled_from(["same", "rounding", "speculation"]))
def test_nothing_is_decided_against_its_interval_or_inside_the_floor(step, tpot, accept, floor, class_) -> None:
    run = ab(step=step, tpot=tpot, accept=accept, floor=floor)
    ratio = run.tpot if criterion(class_) == "tpot" else run.step_time
    verdict = decide(change(class_), results(), ab=run).verdict
    assert verdict in ("keep", "reject", "inconclusive")
    if verdict == "keep":
        assert ratio.high < 0
    if verdict == "reject":
        assert ratio.low > 0
    if verdict != "inconclusive":
        assert abs(ratio.estimate) > floor * 0.95


@given(INTERVALS, INTERVALS, INTERVALS)
def test_an_aa_is_inconclusive_whatever_it_shows(step, tpot, accept) -> None:
    run = ab(step=step, tpot=tpot, accept=accept, floor=0.0, same_arms=True)
    assert decide(change("same"), results(), ab=run).verdict == "inconclusive"


@given(INTERVALS, st.floats(0, 0.1))
def test_mirrored_arms_mirror_the_decision(values, floor) -> None:
    ratio = LogRatio(estimate=values[0], low=values[1], high=values[2])
    assert ratio.beyond(floor) == (-ratio).beyond(floor)
    assert (ratio.below, ratio.above) == ((-ratio).above, (-ratio).below)
