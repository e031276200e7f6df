"""A campaign in MLflow: cells and decisions as children, what it came to as note and plots of their parent."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse
from urllib.request import url2pathname

import pytest
from mlflow.tracking import MlflowClient

from analysis.__main__ import main as analysis
from analysis.dossier import studies
from analysis.report.plots import plots
from analysis.report.svg import alone
from tests.analysis.made import CAMPAIGN, CELLS, DECISIONS, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlflow.entities import Run

pytestmark = pytest.mark.process  # no server, but MLflow takes seconds to come
INVOCATION = {"id": "0123456789ab", "cells": 5, "started_utc": "2026-01-02T03:04:00+00:00"}
OTHER = INVOCATION | {"id": "ba9876543210"}


@pytest.fixture
def directory(tmp_path: Path, blank_store: Callable[[Path], Path]) -> Path:
    """The campaign's records, synced; one more cell is of another call."""
    asked: dict[str, Any] = {"invocation": INVOCATION, "identity": "i", "expect": "faster", "effect": None}
    records = [record | asked | {"blocks": {"spent_s": 9.5}} for record in (*CELLS, *DECISIONS)]
    write(tmp_path, *records, CELLS[1] | asked | {"name": "later", "invocation": OTHER}, campaign=CAMPAIGN)
    blank_store(tmp_path / "mlflow.db")
    assert analysis(["sync", str(tmp_path)]) == 0
    return tmp_path


def runs(directory: Path) -> tuple[Run, dict[str, Run]]:
    """The campaign's parent, and its children by name."""
    client = MlflowClient(tracking_uri=f"sqlite:///{directory}/mlflow.db")
    experiment = client.get_experiment_by_name("tuning").experiment_id
    (parent,) = client.search_runs([experiment], f"tags.invocation = '{INVOCATION['id']}'")
    children = client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'")
    return parent, {str(run.info.run_name): run for run in children}


def artifacts(run: Run) -> dict[str, bytes]:
    folder = Path(url2pathname(urlparse(run.info.artifact_uri).path), "plots")
    return {path.name: path.read_bytes() for path in folder.glob("*.svg")}


def test_a_decision_and_its_cell_are_two_runs_with_two_names(directory: Path) -> None:
    _, children = runs(directory)
    assert sorted(children) == [
        "base", "broken", "decision: loud", "decision: overlap", "decision: pinned", "loud", "overlap", "pinned",
    ]  # fmt: skip
    kept = children["decision: overlap"].data
    assert (kept.tags["verdict"], kept.params["verdict"]) == ("keep", "keep")
    assert kept.tags["reason"] == "faster: as the interval says"
    assert kept.metrics["ab/step_time/always_valid_estimate"] == -0.12
    assert "Hypothesis: overlap saves a launch" in kept.tags["mlflow.note.content"]
    assert children["broken"].data.params["verdict"] == "invalid"
    assert [*artifacts(children["decision: overlap"])] == ["paired_ratios.svg"]
    assert [*artifacts(children["overlap"])] == ["accept_by_position.svg"]


def test_the_parent_shows_what_the_records_of_its_call_came_to(directory: Path) -> None:
    parent, _ = runs(directory)
    note = parent.data.tags["mlflow.note.content"]
    assert note.startswith("Kept, in this order: overlap\n")
    assert "| pinned | reject | +4.1% \\[+3.0%, +5.1%\\] |" in note
    assert "later" not in note
    (study,) = studies(directory)
    shown = artifacts(parent)
    assert set(shown) == set(plots(study))
    name = "trajectory_mean_tpot_ms.svg"
    assert shown[name].decode() == alone(plots(study)[name])
    assert b"later" not in shown["step_by_rows.svg"]


def test_an_ab_s_parent_ends_with_its_decision(tmp_path: Path, blank_store: Callable[[Path], Path]) -> None:
    """The decision is filed on the parent itself, minutes after the last of its cells."""
    asked: dict[str, Any] = {
        "invocation": INVOCATION | {"cells": 2},
        "identity": "i",
        "expect": "faster",
        "effect": None,
    }
    decision = (
        DECISIONS[0] | asked | {"kind": "ab", "blocks": {"spent_s": 9.5}, "ended_utc": "2026-01-02T04:00:00+00:00"}
    )
    write(tmp_path, *(cell | asked for cell in CELLS[:2]), decision)
    blank_store(tmp_path / "mlflow.db")
    assert analysis(["sync", str(tmp_path)]) == 0
    parent, children = runs(tmp_path)
    assert len(children) == 2
    assert parent.info.end_time == int(datetime(2026, 1, 2, 4, tzinfo=UTC).timestamp() * 1000)
    assert parent.info.end_time > max(run.info.end_time for run in children.values())


def test_syncing_again_changes_nothing(directory: Path) -> None:
    before = {name: (run.data.to_dictionary(), artifacts(run)) for name, run in runs(directory)[1].items()}
    parent = runs(directory)[0]
    assert analysis(["sync", str(directory)]) == 0
    after, children = runs(directory)
    assert (after.data.to_dictionary(), artifacts(after)) == (parent.data.to_dictionary(), artifacts(parent))
    assert {name: (run.data.to_dictionary(), artifacts(run)) for name, run in children.items()} == before
