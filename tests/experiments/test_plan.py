"""Names, axes and identities of cells."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from experiments.plan import Inputs, expand, identity
from experiments.spec import CellSpec, EngineSpec, ModelSpec, SpeculationSpec, VerifyMode

if TYPE_CHECKING:
    from collections.abc import Callable

NONE = SpeculationSpec()
INPUTS = Inputs(
    commit="c", harness="h", dataset="d", task_data=None, model="m", draft=None, sts=None, cost_table=None, hardware="w"
)


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


def block(size: int, mode: VerifyMode = "static", **keys: Any) -> SpeculationSpec:
    return SpeculationSpec(algorithm="dspark", block_size=size, verify_mode=mode, draft_path=f"/drafts/{size}", **keys)


def names(cell: CellSpec, *speculations: SpeculationSpec) -> list[str]:
    return [one.name for one in expand([replace(cell, speculation=speculation) for speculation in speculations])]


def test_blocks_are_named_by_size_and_by_the_mode_that_is_not_the_default(cell: CellSpec) -> None:
    cells = NONE, nextn(3), block(8), block(16), block(16, "compact"), block(8, "cap-accept")
    assert names(cell, *cells) == [
        "none",
        "nextn-3-4",
        "dspark-8",
        "dspark-16",
        "dspark-16-compact",
        "dspark-8-cap-accept",
    ]


def test_other_keys_of_speculation_are_named_where_cells_of_one_label_differ_in_them(cell: CellSpec) -> None:
    cells = block(8), block(8, acceptance="block"), block(16), block(16, "compact", scheduler="global"), NONE
    assert names(cell, *cells) == [
        "dspark-8_acceptance=None",
        "dspark-8_acceptance=block",
        "dspark-16",
        "dspark-16-compact",
        "none",
    ]


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
    drafted = replace(cell, speculation=block(8, "compact", sts_path="/a/sts.json"))
    moved = replace(drafted, speculation=replace(drafted.speculation, draft_path="/b", sts_path="/b/sts.json"))
    assert identity(drafted, INPUTS) == identity(moved, INPUTS)


@pytest.mark.parametrize(
    "changed", ["commit", "harness", "dataset", "task_data", "model", "draft", "sts", "cost_table", "hardware"]
)
def test_identity_follows_every_input(cell: CellSpec, changed: str) -> None:
    different: dict[str, Any] = {changed: "other"}
    assert identity(cell, INPUTS) != identity(cell, replace(INPUTS, **different))


def test_identity_ignores_what_the_audit_is_to_assume(cell: CellSpec) -> None:
    assert identity(replace(cell, engine=replace(cell.engine, gpu="B200")), INPUTS) == identity(cell, INPUTS)


def test_identity_follows_the_spec(cell: CellSpec) -> None:
    assert identity(cell, INPUTS) != identity(replace(cell, speculation=nextn(4)), INPUTS)
    assert identity(cell, INPUTS) != identity(replace(cell, env={"A": "1"}), INPUTS)


def test_a_command_is_named_by_its_end_and_by_no_place_on_this_machine(make_cell: Callable[..., CellSpec]) -> None:
    cells = [
        make_cell(engine=EngineSpec(command=("/a/b/python", "-m", "build", build))) for build in ("clean", "slow=0.05")
    ]
    assert [cell.name for cell in expand(cells)] == [
        "nextn-3-4_command=python-m-build-clean",
        "nextn-3-4_command=python-m-build-slow-0.05",
    ]


def test_what_goes_with_a_label_is_named_only_where_cells_of_that_label_differ_in_it(cell: CellSpec) -> None:
    fast = replace(cell, speculation=nextn(3), env={"FAST": "1"})
    plain = replace(cell, speculation=NONE)
    assert [one.name for one in expand([plain, fast])] == ["none", "nextn-3-4"]
    assert expand([plain, fast])[1].axes["env.FAST"] == "1"
    slow = replace(fast, env={"FAST": "0"})
    assert [one.name for one in expand([plain, fast, slow])] == ["none", "nextn-3-4_FAST=1", "nextn-3-4_FAST=0"]


def test_chains_and_looked_up_drafts_are_named_by_their_window(cell: CellSpec) -> None:
    chain = replace(nextn(3), algorithm="eagle3", draft_path="/d")
    assert names(cell, chain, SpeculationSpec(algorithm="ngram", num_draft_tokens=12)) == ["eagle3-3-4", "ngram-12"]
