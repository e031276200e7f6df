"""run.py and the audit: shown before a run, filed with it, and under strict the end of it before anything starts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from experiments import plan
from experiments.audit import cells, report
from experiments.errors import ConfigError
from experiments.preparation import Plan, Prepared
from experiments.spec import ClaimSpec, SpeculationSpec, StudySpec
from experiments.workloads import Data
from gates.evidence import Missing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from experiments.spec import CellSpec
    from tests.experiments.driver import Run

IMPOSSIBLE = "claims.accept_length=9.95"
REASON = "9.95 tokens a step cannot come out of a window of 4 rows"
STRICT = f"audit=strict: claims.accept_length: accept-length-impossible: {REASON}"


@pytest.fixture
def planned(make_cell: Callable[..., CellSpec], tmp_path: Path) -> Callable[..., Plan]:
    """Two cells of which the audit says the same, but for the window."""

    def build(audit: str, claims: ClaimSpec) -> Plan:
        chains = [SpeculationSpec(algorithm="nextn", num_steps=n, num_draft_tokens=n + 1) for n in (3, 2)]
        data = Data(dataset=tmp_path, dataset_sha256="", warmup=(), task_rows=(), task_sha256=None)
        items = [
            Prepared(cell, data, "", Missing("no baseline"), cells.audit(cell.spec, claims))
            for cell in plan.expand([make_cell(speculation=one) for one in chains])
        ]
        study = replace(StudySpec(study="s"), audit=audit)
        return Plan(study, tuple(items))

    return build


def test_strict_refuses_errors_and_warn_shows_them(
    planned: Callable[..., Plan], capsys: pytest.CaptureFixture[str]
) -> None:
    claims = ClaimSpec(accept_length=9.95)
    report.announce([planned("warn", claims)])
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[:3] for line in lines] == [
        ["error", " accept-length-impossible", f" claims.accept_length (s/nextn-{steps}-{steps + 1})"]
        for steps in (3, 2)
    ]
    with pytest.raises(ConfigError, match="accept-length-impossible"):
        report.announce([planned("strict", claims)])
    report.announce([planned("strict", ClaimSpec(accept_length=3.0))])


def test_the_table_names_each_finding_once_and_its_cells_where_they_are_not_all(planned: Callable[..., Plan]) -> None:
    lines = [*report.table([planned("warn", ClaimSpec(accept_length=3.5))])]
    assert lines[0] == "error    accept-length-impossible: claims.accept_length (s/nextn-2-3)"
    assert lines[-1] == "audit: 1 error"
    (entry,) = report.entries([planned("warn", ClaimSpec(accept_length=3.5))])
    assert set(entry) == {"code", "severity", "subject", "reason", "source", "remedy", "cells"}
    assert [*report.table([planned("warn", ClaimSpec())])] == ["audit: nothing found"]


@pytest.mark.process
def test_preflight_shows_the_findings_as_a_table_and_in_the_json_line(run_py: Callable[..., Run]) -> None:
    shown = run_py("preflight=true", IMPOSSIBLE, "workload=post_small", "audit=strict")
    assert [finding["code"] for finding in shown.line["findings"]] == ["accept-length-impossible", "random-tiles"]
    assert {"error    accept-length-impossible: claims.accept_length", "audit: 1 error, 1 warning"} <= {
        *shown.out.splitlines()
    }
    assert shown.code == 2


@pytest.mark.process
def test_a_run_says_it_on_stderr_and_files_it_in_the_record(run_py: Callable[..., Run]) -> None:
    shown = run_py(IMPOSSIBLE)
    assert shown.code == 0
    assert f"error: accept-length-impossible: claims.accept_length: {REASON}" in shown.err
    (finding,) = shown.record()["findings"]
    assert (finding["code"], finding["severity"], finding["reason"]) == ("accept-length-impossible", "error", REASON)
    assert shown.line["cells"][0]["findings"] == [finding]


@pytest.mark.process
@pytest.mark.parametrize("mode", [(), ("mode=ab", 'ab.candidate=["speculation.num_steps=2"]', "ab.prompts=1")])
def test_strict_ends_a_run_before_anything_starts(run_py: Callable[..., Run], mode: tuple[str, ...]) -> None:
    shown = run_py(IMPOSSIBLE, "audit=strict", *mode)
    assert shown.code == 2
    assert shown.line["error"].startswith(STRICT)
    assert not list((shown.directory / "out").rglob("record.json"))
