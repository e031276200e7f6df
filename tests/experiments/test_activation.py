"""An inactive change is found by what the server ran, not by what it was told."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from experiments.engines.ling_activation import expected, fallbacks, observed
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


BLOCK = SpeculationSpec(
    algorithm="dspark", block_size=8, draft_path="/d", verify_mode="static", acceptance="classic", greedy_draft=False
)
SCHEDULED = replace(BLOCK, verify_mode="compact", scheduler="causal", allow_fallback=False, sts_path="/s.json")
SECTION: dict[str, Any] = {
    "gamma": 8,
    "window": 9,
    "verify_mode": "static",
    "scheduler": None,
    "acceptance": "classic",
    "draft_path": "/d",
    "sts": None,
    "cost_table": None,
    "verified_rows": 90,
    "verify_requests": 10,
}
PLANNED = SECTION | {"verify_mode": "compact", "scheduler": "causal", "sts": {"temperatures": []}, "verified_rows": 31}


def block_info(section: dict[str, Any] | None, **changes: Any) -> dict[str, Any]:
    greedy = {"speculative_algorithm": "DSPARK", "speculative_dspark_greedy_draft": False}
    return {"dtype": "float32", **greedy, "speculation": section and section | changes}


@pytest.mark.parametrize(("speculation", "section"), [(BLOCK, SECTION), (SCHEDULED, PLANNED)])
def test_a_block_that_was_verified_as_asked_has_no_fault(
    make_cell: Callable[..., CellSpec], speculation: SpeculationSpec, section: dict[str, Any]
) -> None:
    assert faults(make_cell(speculation=speculation), block_info(section)) == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"gamma": 7}, "speculation.block_size=8 was asked for; active: 7"),
        (
            {"verify_mode": "static", "verified_rows": 90},
            "speculation.verify_mode=compact was asked for; active: static",
        ),
        ({"draft_path": "/e"}, "speculation.draft_path=/d was asked for; active: /e"),
        ({"acceptance": "block"}, "speculation.acceptance=classic was asked for; active: block"),
        ({"scheduler": "global"}, "speculation.scheduler=causal was asked for; active: global"),
        ({"sts": None}, "speculation.sts_path=in use was asked for; active: None"),
        ({"verified_rows": 9}, "speculation.verified_rows=counted was asked for; active: 9 rows in 10 verifications"),
        (
            {"verified_rows": 0, "verify_requests": 0},
            "speculation.verified_rows=counted was asked for; active: 0 rows in 0 verifications",
        ),
    ],
)
def test_a_block_that_was_not_is_named(make_cell: Callable[..., CellSpec], changes: dict[str, Any], fault: str) -> None:
    assert faults(make_cell(speculation=SCHEDULED), block_info(PLANNED, **changes)) == [fault]


def test_a_static_window_is_verified_whole(make_cell: Callable[..., CellSpec]) -> None:
    (fault,) = faults(make_cell(speculation=BLOCK), block_info(SECTION, verified_rows=89))
    assert fault.endswith("active: 89 rows in 10 verifications")


def test_a_server_that_says_nothing_of_its_blocks_proves_nothing(make_cell: Callable[..., CellSpec]) -> None:
    assert len(faults(make_cell(speculation=SCHEDULED), block_info(None))) == 7


def test_an_artifact_that_was_allowed_not_to_fit_is_a_remark(make_cell: Callable[..., CellSpec]) -> None:
    allowed = replace(SCHEDULED, allow_fallback=True)
    info = block_info(PLANNED, sts=None)
    assert faults(make_cell(speculation=allowed), info) == []
    (remark,) = fallbacks(allowed, info)
    assert remark.startswith("speculation.sts_path does not fit and is not in use")
    assert not [*fallbacks(allowed, block_info(PLANNED))]
