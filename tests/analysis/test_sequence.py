"""The always-valid interval: covers at every look, whatever the noise, and is what its gambler's capital says."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from analysis.sequence import always_valid, centre, clipped, fewest_blocks, log_capital

FEW = settings(max_examples=30, deadline=None)
CONTRASTS = arrays(float, st.integers(8, 24), elements=st.floats(-0.5, 0.5, width=32))


def symmetric(kind: str, shape: tuple[int, int], seed: int) -> np.ndarray:
    """Noise whose signs a fair coin decides; the magnitudes may be as bad as they like."""
    generator = np.random.default_rng(seed)
    magnitudes = {
        "normal": lambda: np.abs(generator.normal(size=shape)),
        "cauchy": lambda: np.abs(generator.standard_cauchy(size=shape)),
        "growing": lambda: np.abs(generator.normal(size=shape)) * np.arange(1, shape[1] + 1) ** 2,
        "correlated": lambda: np.exp(generator.normal(size=shape).cumsum(axis=1)),
        "two sizes": lambda: np.where(generator.random(shape) < 0.1, 50.0, 1.0),
    }[kind]()
    return magnitudes * generator.choice([-1.0, 1.0], size=shape)


@pytest.mark.parametrize("kind", ["normal", "cauchy", "growing", "correlated", "two sizes"])
def test_the_truth_is_ever_refused_in_at_most_one_of_twenty_runs(kind: str) -> None:
    capital = log_capital(symmetric(kind, (2000, 60), seed=3))
    ever = (capital >= math.log(20)).any(axis=1).mean()
    assert ever <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 2000)


def test_a_fixed_interval_looked_at_as_often_would_not_do() -> None:
    """What the method is for: peeking at a t interval sixty times refuses the truth far more often."""
    noise = symmetric("normal", (500, 60), seed=4)
    n = np.arange(1, 61)
    means = noise.cumsum(axis=1) / n
    deviations = np.sqrt(np.maximum((noise**2).cumsum(axis=1) / n - means**2, 0) * n / np.maximum(n - 1, 1))
    peeks = np.abs(means[:, 7:]) > 2.1 * deviations[:, 7:] / np.sqrt(n[7:])
    assert peeks.any(axis=1).mean() > 0.15


def test_the_gamblers_capital_is_fair() -> None:
    """Over all sixteen signs of four magnitudes it is 1 on average, at every block."""
    magnitudes = np.array([0.3, 2.0, 0.7, 0.7])
    signs = np.array(np.meshgrid(*[[-1, 1]] * 4)).reshape(4, -1).T
    assert np.exp(log_capital(signs * magnitudes)).mean(axis=0) == pytest.approx(np.ones(4))


def test_eight_equal_blocks_are_the_fewest_that_decide() -> None:
    assert fewest_blocks() == 8
    assert always_valid(np.full(7, -0.03)).high == math.inf
    eight = always_valid(np.full(8, -0.03))
    assert (eight.low, eight.high) == (pytest.approx(-0.03), pytest.approx(-0.03))


def test_a_larger_alpha_needs_fewer() -> None:
    assert fewest_blocks(0.2) < 8 < fewest_blocks(0.01)


@FEW
@given(CONTRASTS, st.floats(-1, 1), st.floats(0.1, 10))
def test_the_interval_moves_and_stretches_with_the_data(contrasts: np.ndarray, shift: float, scale: float) -> None:
    before, after = always_valid(contrasts), always_valid(scale * contrasts + shift)
    for name in ("estimate", "low", "high"):
        expected = scale * getattr(before, name) + shift
        assert getattr(after, name) == pytest.approx(expected, abs=2e-3 * scale)


@FEW
@given(CONTRASTS)
def test_swapping_the_arms_mirrors_it(contrasts: np.ndarray) -> None:
    there, back = always_valid(contrasts), -always_valid(-contrasts)
    assert vars(there) == pytest.approx(vars(back), abs=1e-9)


@FEW
@given(CONTRASTS)
def test_it_contains_its_estimate_and_everything_that_is_not_refused(contrasts: np.ndarray) -> None:
    interval = always_valid(contrasts)
    assert interval.low <= interval.estimate <= interval.high
    thetas = np.linspace(contrasts.min() - 1, contrasts.max() + 1, 201)
    accepted = thetas[log_capital(contrasts - thetas[:, None])[:, -1] < math.log(20)]
    slack = 2e-2
    assert all(interval.low - slack <= theta <= interval.high + slack for theta in accepted)


def test_one_wild_block_moves_it_no_more_than_a_tame_one_on_the_same_side() -> None:
    tame = np.random.default_rng(5).normal(-0.03, 0.01, size=20)
    for wild in (0.2, 2.0, 200.0):
        hit = np.append(tame, wild)
        assert vars(always_valid(hit))["high"] == pytest.approx(always_valid(np.append(tame, 0.2)).high, abs=1e-3)
        assert always_valid(hit).below


def test_clipping_compares_with_the_median_of_the_first_power_of_two() -> None:
    shares = clipped(np.array([2.0, 1.0, 9.0, 0.5, 3.0]))
    assert shares == pytest.approx([1.0, 1 / 1.5, 1.0, 0.5 / 1.5, 1.0])
    assert clipped(np.zeros(3)).tolist() == [0.0, 0.0, 0.0]


def test_the_centre_is_the_median_of_means_of_two() -> None:
    assert centre(np.array([0.0, 1.0, 10.0])) == pytest.approx(np.median([0, 1, 10, 0.5, 5, 5.5]))
