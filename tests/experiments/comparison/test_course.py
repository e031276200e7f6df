from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from experiments.comparison import course
from experiments.comparison.course import prepare
from experiments.comparison.spec import ABSpec, CampaignSpec, Entry, Modes
from experiments.composition import Composed
from experiments.errors import ConfigError
from experiments.sharing import turn
from experiments.spec import StudySpec
from experiments.tracking import Untracked

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from experiments.comparison.course import Venture
    from experiments.spec import CellSpec

ROUNDS = {"kernels": {"router": "bf16"}}
ENTRIES = (
    Entry(name="deeper", overrides=("speculation.num_steps=5",)),
    Entry(name="router", overrides=("kernels.router=bf16",)),
)
AT_ONCE = ABSpec(prompts=1, start="at_once", servers="together")


@pytest.fixture
def go(make_cell: Callable[..., CellSpec], tmp_path: Path) -> Callable[..., Venture]:
    """What Hydra would have composed, prepared: a base and one cell per change of it."""

    def run(modes: Modes, *changes: dict[str, Any]) -> Venture:
        base = make_cell()
        cells = [replace(base, **change) for change in ({}, *changes)]
        study = StudySpec(study="c", output_dir=str(tmp_path))
        return prepare([Composed(study, cell, modes) for cell in cells])

    return run


def ab(**settings: Any) -> Modes:
    return Modes(mode="ab", ab=ABSpec(**({"prompts": 1} | settings)))


def campaign(*entries: Entry) -> Modes:
    return Modes(mode="campaign", ab=ABSpec(prompts=1), campaign=CampaignSpec(changes=entries))


def test_arms_are_named_as_the_cells_of_a_sweep(go: Callable[..., Venture], make_cell: Callable[..., CellSpec]) -> None:
    deeper = replace(make_cell().speculation, num_steps=5, num_draft_tokens=None)
    venture = go(ab(reason="why"), {"speculation": deeper})
    assert [item.cell.name for item in venture.plan.cells] == ["nextn-3-4", "nextn-5-6"]
    assert venture.plan.cells[1].cell.spec.change.reason == "why", "declared about the candidate alone"
    assert venture.plan.cells[0].cell.spec.change.reason is None
    assert [item.cell.name for item in go(ab(), {}).plan.cells] == ["nextn-3-4", "nextn-3-4.2"]


def test_a_campaign_is_its_base_and_each_change_by_itself(
    go: Callable[..., Venture], make_cell: Callable[..., CellSpec]
) -> None:
    deeper = replace(make_cell().speculation, num_steps=5, num_draft_tokens=None)
    venture = go(campaign(*ENTRIES), {"speculation": deeper}, ROUNDS)
    assert [item.cell.name for item in venture.plan.cells] == ["base", "deeper", "router"]
    assert venture.plan.cells[1].cell.axes == {"speculation.num_steps": 5, "speculation.num_draft_tokens": 6}
    assert venture.plan.cells[2].cell.axes == {"kernels.router": "bf16"}


@pytest.mark.parametrize(
    ("modes", "changes", "named"),
    [
        (ab(prompts=9), ({},), r"ab\.prompts: 9 to a block"),
        (ab(prompts=0), ({},), r"ab\.prompts: 0 is too small"),
        (ab(floor_runs=2), ({},), r"ab\.floor_runs"),
        (ab(budget_s=0.0), ({},), r"ab\.budget_s"),
        (ab(start="at_once"), ({},), r"ab\.start: at_once .* ab\.servers=auto; allowed: together"),
        (ab(accept_bound=-0.1), ({},), r"ab\.accept_bound: -0\.1 is too small; allowed: 0 and more"),
        (campaign(replace(ENTRIES[0], accept_bound=-1.0)), (ROUNDS,), r"campaign.*deeper.*accept_bound: -1\.0 is too"),
        (ab(rounding="declared"), ({},), r"change\.reason"),
        (ab(rounding="preserved"), (ROUNDS,), r"change\.rounding=preserved, but this rounds"),
        (ab(), ({}, {}, {}), "one job, not 2"),
        (campaign(), (), r"campaign\.changes: none"),
        (campaign(ENTRIES[0], ENTRIES[0]), (ROUNDS, ROUNDS), "names must differ"),
        (campaign(replace(ENTRIES[0], name="base")), (ROUNDS,), "names must differ"),
        (campaign(ENTRIES[0]), ({},), "change nothing"),
    ],
)
def test_what_is_wrong_is_found_before_anything_starts(
    go: Callable[..., Venture], modes: Modes, changes: tuple[dict[str, Any], ...], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        go(modes, *changes)


@pytest.mark.parametrize(
    "bounded",
    [
        {"flags": {"graph-memory-mib": "512"}},
        {"extra_args": ("--graph-memory-mib", "512")},
        {"extra_args": ("--graph-memory-mib=512",)},
    ],
    ids=["a flag", "arguments", "one argument"],
)
def test_a_server_that_counts_what_the_card_has_left_starts_alone(
    go: Callable[..., Venture], make_cell: Callable[..., CellSpec], bounded: dict[str, Any]
) -> None:
    base = make_cell().engine
    change = {"engine": replace(base, device="cuda", **bounded)}
    message = r"ab\.start: at_once beside graph-memory-mib .* allowed: in_turn, or no graph-memory-mib"
    for modes in (Modes(mode="ab", ab=AT_ONCE), replace(campaign(ENTRIES[0]), ab=AT_ONCE)):
        with pytest.raises(ConfigError, match=message):
            go(modes, change)
    go(ab(start="in_turn", servers="together"), change)
    go(Modes(mode="ab", ab=AT_ONCE), {"engine": replace(base, flags={"pdl": "late"}, device="cuda")})


def test_a_second_driver_says_so_and_waits_for_the_first(
    go: Callable[..., Venture], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    venture, order = go(ab(), {}), []
    monkeypatch.setattr(course, "prepare", lambda composed: venture)
    monkeypatch.setattr(course, "open_tracker", lambda study, invocation: Untracked())
    monkeypatch.setattr(course, "run", lambda venture, charted: order.append("second"))
    second = threading.Thread(target=course.main, args=([],))
    with turn(course.lock_file(venture)) as ours:
        assert ours
        second.start()
        deadline = time.monotonic() + 20.0
        while "another driver is at this ab in" not in capsys.readouterr().err:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        order.append("first")
    second.join(20.0)
    assert order == ["first", "second"]
