from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from experiments.comparison.patch import apply, difference
from experiments.errors import ConfigError
from experiments.spec import ChangeSpec, SpeculationSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from experiments.spec import CellSpec

    Make = Callable[..., CellSpec]

DSPARK = SpeculationSpec(algorithm="dspark", block_size=8, draft_path="draft", verify_mode="static")


def flags(cell: CellSpec, *args: str) -> CellSpec:
    return replace(cell, engine=replace(cell.engine, extra_args=args))


@pytest.fixture
def base(make_cell: Make) -> CellSpec:
    return replace(make_cell(), env={"A": "1"}, kernels={"router": "reference"})


def test_a_patch_turns_the_base_into_the_changed_cell_and_is_empty_for_equal_ones(base: CellSpec) -> None:
    for changed in (
        replace(base, speculation=DSPARK),
        replace(base, env={"B": "2"}),
        replace(base, kernels={"router": "bf16", "moe_align": "pair_axis"}),
        flags(base, "--fused", "on"),
        replace(base, workload=replace(base.workload, output_len=99)),
    ):
        assert apply(base, [difference(base, changed)]) == changed
    assert difference(base, base) == ()
    assert base.env == {"A": "1"}, "a spec is never changed in place"


def test_changes_of_different_keys_stay_when_others_go(base: CellSpec) -> None:
    deeper = difference(base, replace(base, speculation=replace(base.speculation, num_steps=5)))
    switched = difference(base, replace(base, env={"A": "1", "FAST": "1"}))
    both = apply(base, [deeper, switched])
    assert (both.speculation.num_steps, both.env) == (5, {"A": "1", "FAST": "1"})
    assert apply(base, [switched, deeper]) == both
    assert apply(base, [switched]).speculation == base.speculation


def test_flags_that_two_changes_add_are_both_there(base: CellSpec) -> None:
    one = difference(flags(base, "--a"), flags(base, "--a", "--one", "1"))
    two = difference(flags(base, "--a"), flags(base, "--a", "--two"))
    assert apply(flags(base, "--a"), [one, two]).engine.extra_args == ("--a", "--one", "1", "--two")


def test_flags_that_two_changes_take_away_are_both_gone(base: CellSpec) -> None:
    whole = flags(base, "--a", "--b", "4", "--c")
    one, two = difference(whole, flags(base, "--b", "4", "--c")), difference(whole, flags(base, "--a", "--c"))
    assert apply(whole, [one]).engine.extra_args == ("--b", "4", "--c")
    assert apply(whole, [one, two]).engine.extra_args == apply(whole, [two, one]).engine.extra_args == ("--c",)
    put = difference(whole, flags(base, "--c", "--b"))
    assert apply(whole, [one, put]).engine.extra_args == ("--c", "--b"), "another order is another list"


def test_a_key_that_a_change_takes_away_is_gone(base: CellSpec) -> None:
    patch = difference(base, replace(base, env={}))
    assert apply(replace(base, env={"A": "1", "B": "2"}), [patch]).env == {"B": "2"}


def test_a_declaration_is_no_difference(base: CellSpec) -> None:
    assert difference(base, replace(base, change=ChangeSpec(rounding="declared", reason="why not"))) == ()


def test_a_value_that_no_spec_takes_is_a_configuration_error(base: CellSpec) -> None:
    (edit,) = difference(base, replace(base, speculation=replace(base.speculation, verify_mode="static")))
    with pytest.raises(ConfigError, match=r"speculation\.verify_mode"):
        apply(base, [(replace(edit, value="sometimes"),)])
