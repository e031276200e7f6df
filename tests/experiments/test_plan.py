"""Names, axes and identities of cells."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from experiments.plan import Inputs, expand, identity
from experiments.spec import CellSpec, ModelSpec, SpeculationSpec

if TYPE_CHECKING:
    from collections.abc import Callable

NONE = SpeculationSpec()
INPUTS = Inputs(commit="c", harness="h", dataset="d", task_data=None, model="m", hardware="w")


def nextn(steps: int) -> SpeculationSpec:
    return SpeculationSpec(algorithm="nextn", num_steps=steps, num_draft_tokens=steps + 1)


@pytest.fixture
def cell(make_cell: Callable[..., CellSpec]) -> CellSpec:
    return make_cell()


def test_a_single_run_is_a_plan_with_one_cell_and_no_axis(cell: CellSpec) -> None:
    (only,) = expand([cell])
    assert (only.name, only.axes) == ("nextn-3-4", {})


def test_speculation_names_its_cells(cell: CellSpec) -> None:
    cells = expand([replace(cell, speculation=s) for s in (NONE, nextn(3), nextn(5))])
    assert [c.name for c in cells] == ["none", "nextn-3-4", "nextn-5-6"]
    assert cells[1].axes == {
        "speculation.algorithm": "nextn",
        "speculation.num_steps": 3,
        "speculation.num_draft_tokens": 4,
    }


@pytest.mark.parametrize(
    ("speculation", "name"),
    [
        (SpeculationSpec(algorithm="dspark", block_size=8), "dspark-8"),
        (SpeculationSpec(algorithm="dspark", block_size=16, verify_mode="compact"), "dspark-16-compact"),
    ],
)
def test_dspark_names(cell: CellSpec, speculation: SpeculationSpec, name: str) -> None:
    assert expand([replace(cell, speculation=speculation)])[0].name == name


def test_every_other_axis_appears_in_the_name_and_is_fit_for_a_directory(cell: CellSpec) -> None:
    first = replace(cell, env={"A_FLAG": "1"}, model=ModelSpec(name="a", path="/models/a b"))
    second = replace(cell, env={"A_FLAG": "0"}, model=ModelSpec(name="a", path="/models/c"))
    assert [c.name for c in expand([first, second])] == ["nextn-3-4_path=a-b_A_FLAG=1", "nextn-3-4_path=c_A_FLAG=0"]


def test_an_a_a_pair_keeps_two_names(cell: CellSpec) -> None:
    assert [c.name for c in expand([cell, cell])] == ["nextn-3-4", "nextn-3-4.2"]


def test_a_declaration_is_no_axis(cell: CellSpec) -> None:
    declared = replace(cell, change=replace(cell.change, accept_bound=0.25))
    assert all(c.axes == {} for c in expand([cell, declared]))


def test_identity_ignores_where_things_lie(cell: CellSpec) -> None:
    moved = replace(cell, model=replace(cell.model, path="/elsewhere"))
    assert identity(cell, INPUTS) == identity(moved, INPUTS)


@pytest.mark.parametrize("changed", ["commit", "harness", "dataset", "task_data", "model", "hardware"])
def test_identity_follows_every_input(cell: CellSpec, changed: str) -> None:
    different: dict[str, Any] = {changed: "other"}
    assert identity(cell, INPUTS) != identity(cell, replace(INPUTS, **different))


def test_identity_follows_the_spec(cell: CellSpec) -> None:
    assert identity(cell, INPUTS) != identity(replace(cell, speculation=nextn(4)), INPUTS)
    assert identity(cell, INPUTS) != identity(replace(cell, env={"A": "1"}), INPUTS)
