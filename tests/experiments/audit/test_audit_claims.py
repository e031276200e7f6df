"""Figures and floors held against the cell that they are stated of."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from experiments.audit.claims import audit_claims
from experiments.spec import ClaimSpec, SpeculationSpec, TaskSpec, WorkloadSpec
from tests.experiments.audit.conftest import DRAFT, LING

if TYPE_CHECKING:
    from collections.abc import Callable

    from experiments.audit.finding import Finding
    from experiments.spec import CellSpec

NEXTN = SpeculationSpec(algorithm="nextn", num_steps=5, num_draft_tokens=6)
SHALLOW = SpeculationSpec(algorithm="nextn", num_steps=3, num_draft_tokens=4)
BLOCK = SpeculationSpec(algorithm="dspark", block_size=8, draft_path=DRAFT)
BLOCK_16 = replace(BLOCK, block_size=16, draft_path=None)


@pytest.fixture
def about(make_cell: Callable[..., CellSpec]) -> Callable[..., list[Finding]]:
    """Findings on Ling-3.0-flash over four ranks."""

    def audited(speculation: SpeculationSpec = NEXTN, claims: ClaimSpec | None = None, **groups: Any) -> list[Finding]:
        cell = make_cell(speculation=speculation, **groups)
        cell = replace(cell, model=replace(cell.model, path=LING), engine=replace(cell.engine, tp_size=4))
        return [*audit_claims(cell, claims or ClaimSpec())]

    return audited


@pytest.mark.parametrize(("speculation", "fires"), [(BLOCK, True), (NEXTN, True), (BLOCK_16, False)])
def test_accept_length_cannot_exceed_the_window(
    about: Callable[..., list[Finding]], speculation: SpeculationSpec, fires: bool
) -> None:
    findings = about(speculation, ClaimSpec(accept_length=9.95))
    assert [(one.code, one.severity) for one in findings] == [("accept-length-impossible", "error")] * fires


def test_the_finding_names_the_draft_that_was_released(about: Callable[..., list[Finding]]) -> None:
    (finding,) = about(BLOCK, ClaimSpec(accept_length=9.95))
    assert f"window of 9 rows; {DRAFT} has blocks of 8" in finding.reason
    assert finding.remedy.startswith("a draft of 9 tokens and more")


@pytest.mark.parametrize(
    ("speculation", "megabytes", "told"),
    [
        (NEXTN, 94, "94 MB is the figure of 4 rows; 6 rows read 136 MB expected and 142 MB at most"),
        (BLOCK, 94, "94 MB is the figure of 4 rows; 9 rows read 200 MB"),
        (NEXTN, 30, "30 MB is the figure of no row count"),
        (NEXTN, 136, None),
        (NEXTN, 141.6, None),
        (SHALLOW, 94, None),
    ],
)
def test_a_cost_model_is_of_the_rows_that_are_verified(
    about: Callable[..., list[Finding]], speculation: SpeculationSpec, megabytes: float, told: str | None
) -> None:
    reasons = [one.reason for one in about(speculation, ClaimSpec(expert_mb=megabytes)) if one.code == "expert-bytes"]
    assert [reason.startswith(told or "") for reason in reasons] == [True] * bool(told)


@pytest.mark.parametrize(("floor", "fires"), [(0.90, True), (0.889, False), (0.87, False), (None, False)])
def test_a_floor_that_the_published_score_fails_is_named(
    about: Callable[..., list[Finding]], floor: float | None, fires: bool
) -> None:
    codes = [one.code for one in about(task=TaskSpec(name="gsm8k", floor=floor))]
    assert codes == ["floor-above-published"] * fires
    assert about(task=TaskSpec(name="none", floor=floor)) == []


@pytest.mark.parametrize(("dataset", "fires"), [("random", True), ("random-ids", False), ("sharegpt", False)])
def test_tiled_prompts_are_named(about: Callable[..., list[Finding]], dataset: Any, fires: bool) -> None:
    findings = about(workload=WorkloadSpec(name="post", dataset_name=dataset, input_len=8192))
    assert [one.code for one in findings] == ["random-tiles"] * fires
