"""An inactive change is found by what the server ran, not by what it was told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from experiments.activation import expected, observed
from experiments.spec import CellSpec, SpeculationSpec
from gates.validity import activation_faults

if TYPE_CHECKING:
    from collections.abc import Callable

NEXTN = {"speculative_algorithm": "NEXTN", "speculative_num_steps": 3, "speculative_num_draft_tokens": 4}
INFO: dict[str, Any] = {**NEXTN, "dtype": "float32", "kernels": []}


def row(calls: int, variant: str = "fused") -> dict[str, Any]:
    return {"operator": "kda_verify", "variant": variant, "numerics": "bitwise", "calls": calls}


def faults(cell: CellSpec, info: dict[str, Any]) -> list[str]:
    return [fault.reason for fault in activation_faults(expected(cell), observed(cell, info))]


def test_what_was_asked_for_and_ran_has_no_fault(make_cell: Callable[..., CellSpec]) -> None:
    cell = make_cell(kernels={"kda_verify": "fused"})
    assert faults(cell, INFO | {"kernels": [row(7), row(3) | {"operator": "other"}]}) == []


@pytest.mark.parametrize(
    ("info", "key"),
    [
        ({"speculative_algorithm": None}, "speculation.algorithm"),
        ({"speculative_num_steps": 5}, "speculation.num_steps"),
        ({"speculative_num_draft_tokens": 8}, "speculation.num_draft_tokens"),
        ({"dtype": "bfloat16"}, "engine.dtype"),
        ({"kernels": []}, "kernels.kda_verify"),
        ({"kernels": [row(0)]}, "kernels.kda_verify"),
        ({"kernels": [row(7, "reference")]}, "kernels.kda_verify"),
    ],
)
def test_anything_else_is_named(make_cell: Callable[..., CellSpec], info: dict[str, Any], key: str) -> None:
    cell = make_cell(kernels={"kda_verify": "fused"})
    (fault,) = faults(cell, INFO | {"kernels": [row(7)]} | info)
    assert fault.startswith(f"{key}=")


def test_a_server_that_speculates_unasked_is_found(make_cell: Callable[..., CellSpec]) -> None:
    cell = make_cell(speculation=SpeculationSpec())
    assert faults(cell, INFO) == ["speculation.algorithm=none was asked for; active: nextn"]
    assert faults(cell, {"dtype": "float32"}) == []
