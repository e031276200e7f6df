"""When an A/B stops, and what it hands to the verdict."""

from __future__ import annotations

import json
import math

import pytest
from machines import ONE_GPU
from rehearse import GPU

from analysis.ab import compare, detectable, stop
from analysis.logratio import LogRatio
from analysis.pairs import contrasts
from analysis.simulation import Effect

GO_ON = {"floor": 0.005, "margin": None, "spent_s": 10.0, "block_s": 5.0, "budget_s": 600.0}
FASTER = LogRatio(estimate=-0.03, low=-0.04, high=-0.02)
UNCLEAR = LogRatio(estimate=-0.01, low=-0.03, high=0.01)


def test_it_goes_on_until_something_is_clear() -> None:
    assert stop(UNCLEAR, **GO_ON) is None
    assert stop(LogRatio(estimate=0.0, low=-math.inf, high=math.inf), **GO_ON) is None


def test_a_clear_difference_beyond_the_floor_ends_it() -> None:
    assert stop(FASTER, **GO_ON) == "decided"
    assert stop(-FASTER, **GO_ON) == "decided"
    assert stop(FASTER, **{**GO_ON, "floor": 0.03}) is None


def test_what_cannot_leave_the_floor_any_more_ends_it() -> None:
    small = LogRatio(estimate=0.001, low=-0.002, high=0.004)
    assert stop(small, **GO_ON) == "inside_floor"
    assert stop(small, **{**GO_ON, "margin": 0.01}) == "equal"


def test_no_block_is_begun_that_would_not_end_in_time() -> None:
    assert stop(UNCLEAR, **{**GO_ON, "spent_s": 595.0}) is None
    assert stop(UNCLEAR, **{**GO_ON, "spent_s": 595.1}) == "budget"


def test_effects_are_kept_apart() -> None:
    trials = GPU.simulate(Effect(step=0.14, accept=0.17), trials=1, seed=3, blocks=20)
    found = compare(trials.pairs(0, 20), seed=1)
    assert found.always_valid["step_time"].estimate == pytest.approx(0.14, abs=0.01)
    assert found.always_valid["tpot"].estimate == pytest.approx(-0.03, abs=0.02)
    assert found.bootstrap["accept"].estimate == pytest.approx(0.17, abs=0.02)
    result = found.result("tpot", 0.01, same_arms=False)
    assert result.accept == found.bootstrap["accept"]
    assert result.mde == found.detectable["tpot"]


def test_too_few_blocks_make_an_unbounded_interval_that_a_record_can_hold() -> None:
    found = compare(GPU.simulate(Effect(step=-0.5), trials=1, seed=3, blocks=5).pairs(0, 5), seed=1)
    assert not found.always_valid["step_time"].decided
    text = json.dumps(found.to_json(), allow_nan=False)
    assert json.loads(text)["step_time"]["always_valid"]["low"] is None


def test_more_blocks_detect_less_and_more_noise_more() -> None:
    runs = GPU.simulate(Effect(), trials=1, seed=3, blocks=60)
    sizes = [detectable(contrasts(runs.pairs(0, n), "step_time")) for n in (12, 24, 60)]
    assert sizes == sorted(sizes, reverse=True)
    assert detectable(5 * contrasts(runs.pairs(0, 24), "step_time")) == pytest.approx(5 * sizes[1], rel=0.05)
    assert sizes[-1] < 10 * ONE_GPU.white
