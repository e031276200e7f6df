"""The real miniature against builds of itself with one known effect in them, through run.py and live servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.experiments.driver import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(2400)]

TRADED = 12.0
"""Per cent of accept length given away, and of step time with it."""


def build(effect: str) -> str:
    return f'["engine.command=[{sys.executable},-m,tests.fakes.planted,\\"{effect}\\"]"]'


@pytest.fixture(scope="module")
def decide(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """One output directory for all, so that the floor is measured once."""
    directory = tmp_path_factory.mktemp("planted")

    def run(baseline: str, candidate: str, *overrides: str) -> dict[str, Any]:
        command = [sys.executable, str(ROOT / "run.py"), "experiment=ab", f"output_dir={directory}", "tracking=none"]
        arms = [f"ab.baseline={baseline}", f"ab.candidate={candidate}"]
        small = ["workload.num_prompts=32", "gate.parity_prompts=2", "gate.parity_tokens=64", "ab.prompts=2"]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [*command, *arms, *small, *overrides], env=env, cwd=directory, capture_output=True, text=True
        )
        (line,) = json.loads(done.stdout.splitlines()[-1])["decisions"]
        record: dict[str, Any] = json.loads(Path(line["record"]).read_text())
        assert record["status"] == "valid", record["reason"]
        return record

    return run


def test_steps_that_are_five_per_cent_slower_are_found_within_ten_minutes(
    decide: Callable[..., dict[str, Any]],
) -> None:
    record = decide(build("none"), build("slow=0.05"))
    assert (record["verdict"], record["rule"]) == ("reject", "slower"), record["reason"]
    assert record["blocks"]["spent_s"] <= 600
    assert 0.02 < record["comparison"]["step_time"]["always_valid"]["estimate"] < 0.09


def test_the_same_build_twice_is_nothing(decide: Callable[..., dict[str, Any]]) -> None:
    record = decide(build("none"), build("none"), "ab.budget_s=120")
    assert (record["verdict"], record["rule"]) == ("inconclusive", "aa")


def test_cheaper_steps_that_accept_less_are_called_a_trade(decide: Callable[..., dict[str, Any]]) -> None:
    """The baseline is the slower build; the candidate commits as much less for each step as it is faster."""
    declared = ["ab.rounding=declared", 'ab.reason="tokens are the same, steps are not"', "ab.accept_bound=2"]
    record = decide(build(f"slow={TRADED / 100}"), build(f"fewer_accepted={TRADED * 3}"), *declared, "ab.budget_s=300")
    compared = record["comparison"]
    assert compared["step_time"]["always_valid"]["estimate"] < -0.05
    assert compared["accept"]["bootstrap"]["high"] < 0
    assert record["verdict"] == "inconclusive", record["reason"]
    assert record["rule"] in ("trade", "aa_floor", "interval")
