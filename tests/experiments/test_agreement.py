"""Report, MLflow and records agree to the last digit, and what tells that they do not is told by an altered one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from mlflow.tracking import MlflowClient

from analysis.dossier import studies
from analysis.report.page import page
from tests.analysis import agreement
from tests.analysis.agreement import in_store, on_page, problems
from tests.analysis.made import CAMPAIGN, CELLS, DECISIONS, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.process  # no server, but MLflow takes seconds to come
CALL = {"id": "0123456789ab", "cells": 5, "started_utc": "2026-01-02T03:04:00+00:00"}
ESTIMATE = ("comparison", "tpot", "always_valid", "estimate")
THIRDS = {"baseline": {"step_ms": 1 / 3, "mean_tpot_ms": 0.1 + 0.2, "accept_length": 2 / 3}}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    asked: dict[str, Any] = {"invocation": CALL, "identity": "i", "expect": "faster", "effect": None}
    decided = [one | {"figures": THIRDS, "blocks": {"spent_s": 9.5}} for one in DECISIONS]
    return write(tmp_path / "out", *(one | asked for one in (*CELLS, *decided)), campaign=CAMPAIGN)


def test_they_agree_and_a_digit_changed_in_a_record_is_told(
    directory: Path, tmp_path: Path, blank_store: Callable[[Path], Path]
) -> None:
    uri = f"sqlite:///{blank_store(tmp_path / 'fresh.db')}"
    assert problems(directory, uri) == []
    edit(directory / "tuning/overlap/attempt-1/record.json", "metrics", "mean_tpot_ms", by=1e-15)
    edit(directory / "tuning/decisions/pinned/attempt-1/decision.json", *ESTIMATE, by=1e-17)
    told = [line.partition(":")[0] for line in in_store(*studies(directory), MlflowClient(uri))]
    assert told == [
        *("MLflow, cell overlap/tpot/mean_ms", "MLflow, cell overlap"),
        *("MLflow, change pinned/ab/tpot/always_valid_estimate", "MLflow, change pinned"),
    ]


def edit(file: Path, *keys: str, by: float) -> None:
    record = json.loads(file.read_text())
    place = record
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] += by
    file.write_text(json.dumps(record))


def test_a_page_that_rounds_is_told(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "page", lambda studies: page(studies).replace("2.5333333333333337", "2.533"))
    (told,) = on_page(*studies(directory))
    assert told == "page, overlap/mean_tpot_ms: [2.533], on record 2.5333333333333337"
