"""The A/A floor: its size, what it holds for, and when it is refused."""

from __future__ import annotations

import datetime as dt
import json
from math import expm1, log1p, sqrt

import numpy as np
import pytest
from scipy import stats

from analysis.floor import FEWEST_RUNS, Floor, FloorError, from_runs, identity, launches, over, usable

NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
RUNS = (0.004, -0.002, 0.003, -0.001)


def floor(**changes: object) -> Floor:
    return from_runs(RUNS, "id", NOW) if not changes else Floor(**{**vars(from_runs(RUNS, "id", NOW)), **changes})


def test_size_by_hand() -> None:
    rms = sqrt((16 + 4 + 9 + 1) / 4) * 1e-3
    assert floor().value == pytest.approx(expm1(rms * stats.t.ppf(0.985, df=4)))


def test_one_more_aa_run_stays_under_it_in_97_of_100_cases() -> None:
    generator = np.random.default_rng(2)
    runs = generator.normal(0, 0.003, size=(4000, 5))
    inside = [abs(expm1(run[4])) <= from_runs(run[:4], "id", NOW).value for run in runs]
    assert np.mean(inside) == pytest.approx(0.97, abs=0.012)


def test_two_runs_are_too_few() -> None:
    with pytest.raises(FloorError, match=f"{FEWEST_RUNS} at least"):
        from_runs(RUNS[:2], "id", NOW)


def test_it_survives_a_file() -> None:
    assert Floor.from_json(json.loads(json.dumps(floor().to_json()))) == floor()


@pytest.mark.parametrize(
    ("asked", "now", "why"),
    [
        ("other", NOW, "another machine, model, workload or harness"),
        ("id", NOW + dt.timedelta(days=8), "8 days old, 7 allowed"),
        ("id", NOW - dt.timedelta(hours=1), "in the future"),
    ],
)
def test_a_floor_that_says_nothing_about_now_is_refused(asked: str, now: dt.datetime, why: str) -> None:
    with pytest.raises(FloorError, match=why):
        usable(floor(), asked, now)


def test_a_fresh_one_is_given_back_and_a_missing_one_refused() -> None:
    assert usable(floor(), "id", NOW + dt.timedelta(days=7)) == floor()
    with pytest.raises(FloorError, match="run the A/A first"):
        usable(None, "id", NOW)


def test_identity_depends_on_every_part_and_not_on_their_order() -> None:
    parts = {"hardware": "h", "model": "m", "workload": "w"}
    assert identity(parts) == identity(dict(reversed(parts.items())))
    assert len({identity({**parts, key: "x"}) for key in parts} | {identity(parts)}) == 4


def test_a_floor_shrinks_by_the_root_of_the_launches() -> None:
    assert over(0.04, [12]) == pytest.approx(0.04)
    assert log1p(over(0.04, [12] * 4)) == pytest.approx(log1p(0.04) / 2)
    uneven = over(0.04, [12, 12, 1])
    assert over(0.04, [12] * 3) < uneven < over(0.04, [12] * 2) < over(0.04, [12]), "one block more says little"
    assert launches(25, 12) == (12, 12, 1)
    assert launches(24, 12) == (12, 12)
    assert launches(25, 0) == (25,)
