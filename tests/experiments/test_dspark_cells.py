"""Cells that draft in blocks, on the fake engine: their figures, and what makes them invalid."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from experiments.checks import checked
from experiments.filing import SERIES, series
from experiments.plan import Cell
from experiments.preparation import with_data
from experiments.spec import CellSpec, SpeculationSpec, StudySpec
from gates.evidence import Missing
from tests.experiments.driver import Run, fake_command, small, start
from tests.fakes import language
from tests.fakes.checkpoint import write_draft

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.process


class Case(NamedTuple):
    name: str
    keys: tuple[str, ...]
    fault: str | None
    status: str
    rule: str
    reason: str


STS = "speculation.sts_path={sts}"
CASES = (
    Case("none", ("speculation=none",), None, "valid", "no_baseline", "nothing to compare with"),
    Case("dspark-8", (), None, "valid", "no_ab", "gates passed"),
    Case("dspark-4", ("speculation.block_size=4",), None, "valid", "no_ab", "gates passed"),
    Case("dspark-8-compact", ("speculation.verify_mode=compact", STS), None, "valid", "no_ab", "gates passed"),
    Case("bytes", (), "other_tokens", "valid", "gate:byte_parity", "byte_parity"),
    Case("above", (), "impossible_counts", "invalid", "impossible_value", "accept length 63 is outside [1, W = 9]"),
    Case("inactive", (), "speculation_ignored", "invalid", "infrastructure", "no verify count"),
    Case(
        "uncounted",
        (),
        "uncounted",
        "invalid",
        "inactive",
        "speculation.verified_rows=counted was asked for; active: 0",
    ),
    Case(
        "mode",
        ("speculation.verify_mode=compact",),
        "mode_ignored",
        "invalid",
        "inactive",
        "speculation.verify_mode=compact was asked for; active: static",
    ),
    Case(
        "artifact",
        ("speculation.verify_mode=compact", STS),
        "artifacts_ignored",
        "invalid",
        "inactive",
        "speculation.sts_path=in use was asked for; active: None",
    ),
)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path, draft: Path) -> Run:
    """One cell per case."""
    directory = tmp_path_factory.mktemp("blocks")
    sts = directory / "sts.json"
    sts.write_text(json.dumps({"temperatures": [1.5] * 8}))
    cells = [
        [
            "speculation=dspark",
            *(key.format(sts=sts) for key in case.keys),
            f"engine.random_seed={index}",
            f"engine.command=[{','.join(fake_command(*filter(None, [case.fault])))}]",
        ]
        for index, case in enumerate(CASES)
    ]
    cells[0].remove("speculation=dspark")
    overrides = (f"model.drafts.8={draft}", "workload.output_len=64", "gate.parity_tokens=64")
    command = small(directory, checkpoint, *overrides, f"cells={cells}".replace("'", '"'))
    return start(command, directory)


def of(sweep: Run, case: Case) -> dict[str, Any]:
    return sweep.record(CASES.index(case))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_ends_as_it_must(sweep: Run, case: Case) -> None:
    record = of(sweep, case)
    assert (record["status"], record["rule"]) == (case.status, case.rule), record["reason"]
    assert case.reason in record["reason"]


def test_the_worst_decides_the_code_and_names_are_short(sweep: Run) -> None:
    assert sweep.code == 3
    names = [cell["name"].partition("_")[0] for cell in sweep.line["cells"]]
    assert names[:4] == ["none", "dspark-8", "dspark-4", "dspark-8-compact"]


def test_figures_of_a_block(sweep: Run) -> None:
    record = of(sweep, CASES[1])
    assert record["change"]["class"] == "speculation"
    assert record["gates"]["byte_parity"]["status"] == "pass"
    metrics = record["metrics"]
    assert metrics["accept_length"] == pytest.approx(language.accept_length(64, 9))
    assert metrics["verified_rows_per_step"] == 9.0
    assert metrics["committed_per_step"] == pytest.approx(metrics["accept_length"])
    assert len(metrics["accept_by_position"]) == 8
    assert of(sweep, CASES[0])["metrics"]["verified_rows_per_step"] is None
    assert series(record) == {name: metrics[key] for name, key in SERIES.items()}
    assert series(of(sweep, CASES[0])) == {}


def test_draft_and_artifacts_are_part_of_a_cell_s_identity_wherever_they_lie(
    make_cell: Callable[..., CellSpec], tmp_path: Path
) -> None:
    def identity(directory: str, temperature: float, rank: int) -> str:
        draft, sts = write_draft(tmp_path / directory / "draft", markov_rank=rank), tmp_path / directory / "sts.json"
        sts.write_text(json.dumps({"temperatures": [temperature] * 8}))
        keys: Any = {"verify_mode": "compact", "sts_path": str(sts), "draft_path": str(draft)}
        cell = checked(make_cell(speculation=SpeculationSpec(algorithm="dspark", block_size=8, **keys)))
        study = StudySpec(study="s", output_dir=str(tmp_path))
        return with_data(Cell("dspark-8", cell, {}), study, Missing("no baseline")).identity

    same = identity("here", 1.5, 8)
    assert identity("there", 1.5, 8) == same
    assert identity("there", 2.0, 8) != same
    assert identity("there", 1.5, 4) != same
