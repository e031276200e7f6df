"""Axes as cells: combinations, linked lists, and values that come through Hydra's grammar as they were."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from experiments.errors import ConfigError
from experiments.sweep import SweepSpec, axes, combinations, override

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.experiments.driver import Run

DEPTHS, LENGTHS = {"speculation.num_steps": [1, 3]}, {"workload.output_len": [64, 128]}


def cells(*listed: list[str], **given: dict[str, list[object]]) -> list[list[str]]:
    return combinations(axes(listed, SweepSpec(**given)))


def test_linked_lists_move_together_and_a_grid_does_not() -> None:
    assert cells(zip=DEPTHS | LENGTHS) == [
        ["speculation.num_steps=1", "workload.output_len=64"],
        ["speculation.num_steps=3", "workload.output_len=128"],
    ]
    assert len(cells(grid=DEPTHS | LENGTHS)) == 4


def test_cells_links_and_grid_are_combined_and_the_last_axis_moves_fastest() -> None:
    found = cells(["speculation=none"], ["speculation=nextn"], zip=LENGTHS, grid={"+env.A": ["x", None]})
    assert len(found) == 8
    assert found[:2] == [
        ["speculation=none", "workload.output_len=64", "+env.A=x"],
        ["speculation=none", "workload.output_len=64", "+env.A=null"],
    ]


def test_no_axes_are_no_cells() -> None:
    assert cells() == []


@pytest.mark.parametrize(
    ("sweep", "words"),
    [
        ({"zip": {"a": [1, 2], "b": [1, 2, 3]}}, "a has 2, b has 3"),
        ({"zip": {"a": []}}, "not 0: a has 0"),
        ({"grid": {"a": []}}, r"sweep.grid.a: has no values"),
        ({"zip": {"a": [1]}, "grid": {"a": [2]}}, "a is an axis of zip and of grid"),
        ({"grid": {"a": list(range(70)), "b": list(range(70))}}, "4900 cells; allowed: up to 4096"),
    ],
)
def test_what_is_no_sweep_is_refused(sweep: dict[str, dict[str, list[object]]], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        cells(**sweep)


def test_only_numbers_that_rise_or_fall_are_ordered() -> None:
    values: dict[str, list[object]] = {"a": [1, 2.5], "b": [3, 1, 2], "c": ["x", "y"], "d": [True, False], "e": [3, 2]}
    assert {axis.name: axis.ordered for axis in axes([], SweepSpec(grid=values))} == {
        "a": True,
        "b": False,
        "c": False,
        "d": False,
        "e": True,
    }


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()


@given(LEAVES | st.lists(LEAVES, max_size=3))
def test_a_value_comes_through_hydra_s_grammar_as_it_was(value: object) -> None:
    read = OverridesParser.create().parse_override(override("key", value))
    assert read.value() == value
    assert type(read.value()) is type(value)


@pytest.mark.process
def test_run_py_composes_every_combination_and_refuses_uneven_lists(run_py: Callable[..., Run]) -> None:
    linked = "sweep.zip={speculation.num_steps:[1,3],workload.output_len:[16,32]}"
    run = run_py(linked, "sweep.grid={+env.A:['x y',z]}", "dry_run=true")
    assert run.code == 0
    assert run.line["dry_run"] == [
        "nextn-1-2_output_len=16_A=x-y",
        "nextn-1-2_output_len=16_A=z",
        "nextn-3-4_output_len=32_A=x-y",
        "nextn-3-4_output_len=32_A=z",
    ]
    run = run_py("sweep.zip={speculation.num_steps:[1,3],workload.output_len:[16]}")
    assert (run.code, run.line["cells"]) == (2, [])
    assert "speculation.num_steps has 2, workload.output_len has 1" in run.line["error"]
    assert "Traceback" not in run.err
