from __future__ import annotations

import math
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pytest
from simulated import QUIET, REQUESTS, Servers

from analysis.sequence import fewest_blocks
from experiments.comparison.timing import Rules, Timed, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from analysis.pairs import Answer

BUDGET_S = 200.0


def timed(servers: Servers, relaunch: Callable[[], None] | None = None, **rules: Any) -> Timed:
    chosen = {"floor": 0.01, "budget_s": BUDGET_S, "prompts": 2, "seed": 3} | rules
    return run(servers.slot, REQUESTS, Rules(**chosen), told=nobody, relaunch=relaunch, clock=servers.clock)


def nobody(block: int, answers: list[Answer]) -> None: ...


def test_a_slower_step_ends_the_run_before_its_budget() -> None:
    found = timed(Servers(QUIET, seed=1, step=math.log(1.1)))
    assert found.stop == "decided"
    assert found.pairs.blocks == len(found.orders) >= fewest_blocks()
    assert found.spent_s < BUDGET_S / 2


def test_no_difference_is_seen_to_be_inside_the_floor_or_goes_to_the_budget() -> None:
    stops = [timed(Servers(QUIET, seed=seed), floor=0.02).stop for seed in range(5)]
    assert set(stops) <= {"inside_floor", "budget"}
    short = timed(Servers(replace(QUIET, launch=0.0), seed=1), floor=0.0001)
    assert short.stop == "budget"
    assert 0.9 * BUDGET_S < short.spent_s <= BUDGET_S, "a block that does not fit any more is not begun"


def test_a_budget_that_is_too_short_for_any_interval_is_still_kept() -> None:
    found = timed(Servers(QUIET, seed=1, step=1.0), budget_s=8.0)
    assert (found.stop, found.spent_s < 8.0) == ("budget", True)
    assert len(found.orders) < fewest_blocks()


def test_who_expects_no_difference_stops_when_it_is_shown() -> None:
    assert timed(Servers(QUIET, seed=2), margin=0.03).stop == "equal"
    assert timed(Servers(QUIET, seed=2, step=math.log(1.1)), margin=0.03).stop == "decided"


def test_the_figure_that_the_verdict_goes_by_is_the_one_that_stops() -> None:
    """More accepted at the same step time: nothing for step time, much for TPOT."""
    longer = math.log(1.3)
    assert timed(Servers(QUIET, seed=4, accept=longer), figure="tpot").stop == "decided"
    assert timed(Servers(QUIET, seed=4, accept=longer), figure="step_time", floor=0.02).stop in (
        "inside_floor",
        "budget",
    )


def test_servers_are_launched_anew_so_that_what_a_launch_drew_does_not_stand_between_the_arms() -> None:
    """Launches differ by 2 %, the floor of one is 6 %, and the step by 4 %."""
    rules = {"floor": 0.06, "launch_blocks": 4}
    servers = Servers(replace(QUIET, launch=0.02), seed=7, step=math.log(1.04))
    found = timed(servers, **rules, relaunch=servers.relaunch)
    assert found.stop == "decided"
    assert set(found.launches[:-1]) == {4}
    assert sum(found.launches) == len(found.orders)
    assert servers.launches == len(found.launches) > 1
    once = timed(Servers(replace(QUIET, launch=0.0), seed=7, step=math.log(1.04)), **rules)
    assert (once.stop, once.launches) == ("inside_floor", (len(once.orders),)), "no way to launch anew was given"


def test_each_block_asks_the_same_prompts_in_four_slots_in_the_order_of_its_coin() -> None:
    servers = Servers(QUIET, seed=5)
    found = timed(servers, blocks=12)
    assert found.stop == "fixed"
    assert set(found.orders) == {"ABBA", "BAAB"}
    for block, slots in groupby(servers.asked, key=lambda slot: slot[1]):
        arms, _, names = zip(*slots, strict=True)
        assert "".join("A" if arm == "baseline" else "B" for arm in arms) == found.orders[block]
        assert len(set(names)) == 1, "one ruler for all four slots"
    assert len({names for _, _, names in servers.asked}) == len(REQUESTS) / 2, "all prompts have their turn"


def test_the_coin_is_the_seed_s_and_no_wish_of_the_data() -> None:
    one, other = timed(Servers(QUIET, seed=1), blocks=20), timed(Servers(QUIET, seed=9), blocks=20)
    assert one.orders == other.orders != timed(Servers(QUIET, seed=1), blocks=20, seed=4).orders


def test_a_failing_slot_is_not_swallowed() -> None:
    servers = Servers(QUIET, seed=1)

    def broken(*_: Any) -> Any:
        raise RuntimeError("gone")

    servers.slot = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="gone"):
        timed(servers)
