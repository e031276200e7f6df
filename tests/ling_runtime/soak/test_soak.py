"""The soak in short, in full (slow), and that it would notice."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ling_runtime.soak.gauges import Reading
from tests.ling_runtime.soak.load import Load, wishes
from tests.ling_runtime.soak.soak import Limits, problems, report, served, soak

STARTING_S = 12.0


def readings(**changes: Any) -> list[Reading]:
    """Thirty readings of a server that is well, with a little noise; `changes` are functions of the number."""
    return [
        Reading(
            **{
                "at_s": 60.0 * i,
                "rss_mb": 320.0 + i % 3,
                "descriptors": 10 + i % 4,
                "threads": 3,
                "step_ms": 30.0 + 10 * (i % 5),
                "step_cpu_ms": 25.0 + 0.3 * (i % 4),
                "answers": ((1, 2, 3),),
                "unreturned": (),
            }
            | {key: change(i) for key, change in changes.items()}
        )
        for i in range(30)
    ]


def test_a_server_that_is_well_has_no_problems() -> None:
    assert problems(readings(), Limits()) == []
    assert problems(readings(rss_mb=lambda i: 280.0 + min(i, 6) * 8), Limits()) == [], "memory may fill up at first"


@pytest.mark.parametrize(
    ("named", "changes"),
    [
        ("memory grew by", {"rss_mb": lambda i: 320.0 + i % 3 + 0.6 * i}),
        ("steps became", {"step_cpu_ms": lambda i: 25.0 + 0.1 * i}),
        ("1 slots", {"unreturned": lambda i: ("1 slots",) if i == 7 else ()}),
        ("another greedy answer", {"answers": lambda i: ((1, 2, 3 + (i == 29)),)}),
        ("descriptors grew", {"descriptors": lambda i: 10 + i}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_goes_wrong_is_named(named: str, changes: dict[str, Any]) -> None:
    (found,) = problems(readings(**changes), Limits())
    assert named in found


def test_what_a_client_met_is_reported() -> None:
    load = Load("http://nowhere", 8, problems=["a wish: ConnectError()"])
    assert report(readings(), load, Limits())["problems"] == ["a wish: ConnectError()"]


def test_clients_are_reproducible_and_varied() -> None:
    first = [wish for wish, _ in zip(wishes(3), range(300), strict=False)]
    assert first == [wish for wish, _ in zip(wishes(3), range(300), strict=False)]
    leaving = [wish for wish in first if wish.events is not None or wish.patience_s is not None]
    assert 40 < len(leaving) < 150
    assert sum(wish.status == 400 for wish in first) > 3


@pytest.mark.process
def test_a_short_soak() -> None:
    """Too short for the limits of a long one: caches still fill, and a reading in a third can be off."""
    result = soak(20, 8, Limits(growth_mb=24, drift=0.3))
    assert result["problems"] == []
    assert result["requests"]["served"] > 30
    assert result["requests"]["left"] > 5
    assert result["ready_s"] < STARTING_S


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(2400)
def test_half_an_hour() -> None:
    result = soak(1800, 60, Limits())
    assert result["problems"] == []


@pytest.mark.process
def test_the_server_is_ready_soon() -> None:
    """With every core it may have; a few seconds where nothing else runs."""
    with served("--speculative-algorithm", "NEXTN") as (_, _, ready_s):
        assert ready_s < STARTING_S
