"""The real miniature against builds of itself with one known effect in them, through run.py and live servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.experiments.comparison.trials import KINDS, trial

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all, so that the floor is measured once."""
    return tmp_path_factory.mktemp("planted")


def test_steps_that_are_five_per_cent_slower_are_found_within_ten_minutes(directory: Path) -> None:
    record = trial(KINDS["slow"], directory, 1, [])
    assert (record["verdict"], record["rule"]) == ("reject", "slower"), record["reason"]
    assert record["blocks"]["spent_s"] <= 600
    assert 0.02 < record["comparison"]["step_time"]["always_valid"]["estimate"] < 0.09


def test_the_same_build_under_another_command_line_is_nothing(directory: Path) -> None:
    record = trial(KINDS["aa"], directory, 1, ["ab.budget_s=120"])
    assert record["verdict"] == "inconclusive", record["reason"]
    assert record["rule"] in ("interval", "aa_floor")


def test_cheaper_steps_that_accept_less_are_called_a_trade(directory: Path) -> None:
    """The baseline is the slower build; the candidate commits as much less for each step as it is faster."""
    record = trial(KINDS["trade"], directory, 1, ["ab.budget_s=300"])
    compared = record["comparison"]
    assert compared["step_time"]["always_valid"]["estimate"] < -0.05
    assert compared["accept"]["bootstrap"]["high"] < 0
    assert record["verdict"] == "inconclusive", record["reason"]
    assert record["rule"] in ("trade", "aa_floor", "interval")
