"""The command line and a preset's cells on one key: who wins, and what is refused so that nothing goes unnoticed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from experiments.errors import ConfigError
from experiments.precedence import arms, lists_cells, settled, without

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.experiments.driver import Run

CELLS = [["speculation=none"], ["speculation=nextn", "+engine.flags.ring=32"], ["speculation=ngram", "a=null"]]


def test_a_cell_s_override_replaces_the_command_line_s_however_it_is_meant() -> None:
    assert without(["speculation=nextn", "a=1"], ["speculation=none", "b=2"]) == ["a=1"]
    assert without(["a.b=1", "++c=2", "~d", "e=3"], ["+a.b=2", "c=1", "d=0"]) == ["e=3"]


@pytest.mark.parametrize("typed", ["engine.flags.ring=24", "++engine.flags.ring=24"])
def test_what_cells_say_alike_is_changed_where_it_is_said_and_there_alone(typed: str) -> None:
    assert settled(["x=1", typed], CELLS[:2]) == [
        (["x=1"], ["speculation=none"]),
        (["x=1"], ["speculation=nextn", "+engine.flags.ring=24"]),
    ]


def test_a_deletion_takes_the_place_of_a_value() -> None:
    assert settled(["~env.A"], [["b=1"], ["env.A=1"]]) == [([], ["b=1"]), ([], ["~env.A"])]


def test_a_cell_that_does_without_stays_so_and_the_others_get_it() -> None:
    assert settled(["a=7"], CELLS) == [
        (["a=7"], CELLS[0]),
        (["a=7"], CELLS[1]),
        ([], CELLS[2]),
    ]


def test_a_value_for_what_cells_differ_in_is_refused() -> None:
    message = r"speculation: is what the preset's cells differ in \(none, nextn, ngram\), and speculation=dspark would"
    with pytest.raises(ConfigError, match=message):
        settled(["speculation=dspark"], CELLS)


def test_arms_keep_their_own_and_what_all_of_them_say_is_refused() -> None:
    base: list[str] = []
    assert arms(["a=1", "b=2"], [base, ["++a=3"]]) == [(["a=1", "b=2"], []), (["b=2"], ["++a=3"])]
    with pytest.raises(ConfigError, match=r"a: is said by every arm"):
        arms(["a=1"], [["a=2"], ["+a=3"]])
    typed = 'cells=[["a=2"],["a=3"]]'
    assert arms(["a=1", typed], [["a=2"], ["a=3"]]) == [([typed], ["a=2"]), ([typed], ["a=3"])]


def test_cells_of_the_command_line_itself_are_known() -> None:
    assert lists_cells(["a=1", "cells=[[]]"])
    assert lists_cells(["+sweep.grid={a:[1]}"])
    assert not lists_cells(["cellsize=1", "experiment=quickstart"])


@pytest.mark.process
def test_run_py_refuses_it_by_name(run_py: Callable[..., Run]) -> None:
    shown = run_py("experiment=quickstart", "speculation.num_steps=4", "dry_run=true")
    assert shown.code == 2
    assert shown.line["error"].startswith("speculation.num_steps: is what the preset's cells differ in (3, 5)")
