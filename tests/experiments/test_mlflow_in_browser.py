"""MLflow's own pages in a real browser: what a reader finds there are the numbers of the records.

The surprise: only rendered text counts. MLflow's table is drawn by a script, and columns that nobody chose are not on
it at all, so tags and metrics in the store prove nothing about what is seen.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx
import pytest
from mlflow.tracking import MlflowClient

from analysis.__main__ import main as analysis
from experiments.columns import link
from experiments.ports import free_port
from tests import browser
from tests.analysis.made import CAMPAIGN, CELLS, DECISIONS, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.process, browser.needed, pytest.mark.timeout(240)]
INVOCATION = {"id": "0123456789ab", "cells": 5, "started_utc": "2026-01-02T03:04:00+00:00"}
READY_S = 60


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, blank_store: Callable[[Path], Path]) -> Path:
    directory = tmp_path_factory.mktemp("mlflow")
    asked: dict[str, Any] = {"invocation": INVOCATION, "identity": "i", "expect": "faster", "effect": None}
    records = [record | asked | {"blocks": {"spent_s": 9.5}} for record in (*CELLS, *DECISIONS)]
    write(directory, *records, campaign=CAMPAIGN)
    blank_store(directory / "mlflow.db")
    assert analysis(["sync", str(directory)]) == 0
    return directory


@pytest.fixture(scope="module")
def page(store: Path) -> Iterator[str]:
    """The address of MLflow's server on that store."""
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{store}/mlflow.db"]
    with (store / "server.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        wait(f"http://127.0.0.1:{port}/health", server)
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.terminate()
        server.wait(30)


def wait(url: str, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        assert server.poll() is None
        try:
            if httpx.get(url, trust_env=False).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.2)
    raise TimeoutError(url)


def text(url: str, profile: Path) -> str:
    """What stands on the page, tags aside."""
    shown = browser.dom(url, profile, "--virtual-time-budget=30000", size="2600,1400")
    return " ".join(re.sub(r"<(script|style).*?</\1>|<[^>]+>", " ", shown, flags=re.DOTALL).split())


def test_the_table_behind_the_link_shows_verdicts_and_figures(store: Path, page: str, tmp_path: Path) -> None:
    client = MlflowClient(tracking_uri=f"sqlite:///{store}/mlflow.db")
    seen = text(page + link(client.get_experiment_by_name("tuning").experiment_id), tmp_path)
    for wanted in ("verdict", "reason", "spec/accept_length", "step/derived_ms", "task/gsm8k_accuracy"):
        assert wanted in seen
    for record in CELLS[:-1]:
        figures = [record["metrics"][key] for key in ("accept_length", "step_ms", "mean_tpot_ms", "output_tok_s")]
        row = [record["verdict"], record["rule"], record["reason"], *figures, record["task"]["accuracy"]]
        assert " ".join(map(str, row)) in seen
    for record in DECISIONS:
        assert str(record["comparison"]["step_time"]["always_valid"]["estimate"]) in seen


def test_the_page_that_compares_cells_has_their_figures(store: Path, page: str, tmp_path: Path) -> None:
    client = MlflowClient(tracking_uri=f"sqlite:///{store}/mlflow.db")
    experiment = client.get_experiment_by_name("tuning").experiment_id
    runs = {run.info.run_name: run.info.run_id for run in client.search_runs([experiment])}
    chosen = CELLS[:2]
    ids = "[" + ",".join(f'"{runs[record["name"]]}"' for record in chosen) + "]"
    seen = text(
        f"{page}#/compare-runs?runs={quote(ids)}&experiments={quote(f'[{chr(34)}{experiment}{chr(34)}]')}", tmp_path
    )
    for record in chosen:
        assert record["verdict"] in seen
        assert f"{record['metrics']['mean_tpot_ms']:.3f}".rstrip("0") in seen
        assert f"{record['task']['accuracy']:.3f}" in seen


def test_a_campaigns_parent_shows_its_plots(store: Path, page: str, tmp_path: Path) -> None:
    client = MlflowClient(tracking_uri=f"sqlite:///{store}/mlflow.db")
    experiment = client.get_experiment_by_name("tuning").experiment_id
    (parent,) = client.search_runs([experiment], f"tags.invocation = '{INVOCATION['id']}'")
    url = f"{page}#/experiments/{experiment}/runs/{parent.info.run_id}/artifacts/plots/paired_ratios.svg"
    shown = browser.dom(url, tmp_path, "--virtual-time-budget=30000", size="1600,1200")
    assert "trajectory_mean_tpot_ms.svg" in shown
    assert re.search(r"<img[^>]+(paired_ratios|blob:)", shown)
