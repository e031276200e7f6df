"""SGLang's own client, installed as `make install` leaves it, against the fake engine."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from experiments import secrets, workloads
from experiments.clients.bench_serving import BenchClient, check_installed, command
from experiments.errors import ClientError, ConfigError, PhaseTimeout, ServerDied
from experiments.limits import within
from experiments.server import Server
from tests.experiments.driver import fake_command
from tests.fakes import language

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from experiments.clients.bench_serving import BenchResult
    from experiments.spec import CellSpec

pytestmark = pytest.mark.process

FAKE_CLIENT = "tests/fakes/load_client"


def bench(cell: CellSpec, directory: Path, answered: Callable[[int], None] = lambda _: None) -> BenchResult:
    data = workloads.prepare(cell, directory / "data")
    with (
        Server(cell, log=directory / "server.log") as server,
        BenchClient(cell, url=server.url, dataset=data.dataset, directory=directory, served_name=server.name) as client,
    ):
        server.wait_ready(10.0)
        return client.run(server, answered)


def test_the_real_client_s_figures_are_kept_and_counted_per_request(
    make_cell: Callable[..., CellSpec], tmp_path: Path
) -> None:
    steps: list[int] = []
    result = bench(make_cell(), tmp_path, steps.append)
    assert sum(steps) == 2
    assert [row.index for row in result.requests] == [0, 1]
    assert result.summary["completed"] == 2
    assert result.summary["total_output_tokens"] == 32
    raw = (tmp_path / "bench.jsonl").read_text()
    assert "Infinity" in raw, "the client's own line, untouched"
    for row, ttft in zip(result.requests, result.summary["ttfts"], strict=True):
        assert row.ttft_s == ttft
        assert (row.asked_tokens, row.completion_tokens) == (16, 16)
        assert row.spec_verify_ct == language.steps(16, 4)[-1].verifies
        assert row.stamps[-1][1] == 16
        assert row.stamps[0][0] == pytest.approx(row.ttft_s, abs=2e-3)
    tpots = [1e3 * (row.latency_s - row.ttft_s) / 15 for row in result.requests]
    assert result.summary["mean_tpot_ms"] == pytest.approx(sum(tpots) / 2)


@pytest.mark.slow
def test_the_real_client_writes_through_the_supervisor_where_there_are_secrets(
    make_cell: Callable[..., CellSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANTED", "planted-of-the-environment")
    monkeypatch.setattr(secrets, "forms", lambda: ["planted-of-the-environment"])
    cell = make_cell()
    leaking = replace(cell.engine, command=fake_command("leak"))
    result = bench(replace(cell, engine=leaking), tmp_path)
    assert (result.summary["completed"], [row.index for row in result.requests]) == (2, [0, 1])
    assert all("***" in text for text in result.summary["generated_texts"])
    assert not [path for path in tmp_path.rglob("*.*") if b"planted-" in path.read_bytes()]


def test_an_unchanged_command_line_reaches_the_client(make_cell: Callable[..., CellSpec], tmp_path: Path) -> None:
    cell = make_cell()
    load = replace(cell.workload, dataset_name="random", input_len=1024, max_concurrency=2)
    argv = command(replace(cell, workload=load), url="http://u", dataset=tmp_path / "d", served_name="n").argv
    text = " ".join(argv)
    assert f"--model {cell.model.path} --tokenizer {cell.model.path}" in text
    assert "--dataset-name random" in text
    assert "--random-input-len 1024 --random-output-len 16 --random-range-ratio 1.0" in text
    assert "--max-concurrency 2 --request-rate inf --seed 1 --warmup-requests 0" in text


@pytest.fixture
def fast_client(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setenv("PYTHONPATH", str(request.config.rootpath / FAKE_CLIENT))


@pytest.mark.usefixtures("fast_client")
@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("errors", ClientError, "completed; first: .*500"),
        ("die_mid_stream", ServerDied, "code -9 while it was in use"),
    ],
)
def test_failed_requests_are_a_failed_run(
    make_cell: Callable[..., CellSpec], tmp_path: Path, fault: str, error: type[Exception], message: str
) -> None:
    cell = make_cell()
    cell = replace(cell, engine=replace(cell.engine, command=fake_command(fault, fault_from=4)))
    cell = replace(cell, workload=replace(cell.workload, num_prompts=6))
    with pytest.raises(error, match=message):
        bench(cell, tmp_path)


@pytest.mark.usefixtures("fast_client")
def test_a_client_that_hangs_is_stopped(make_cell: Callable[..., CellSpec], tmp_path: Path) -> None:
    cell = make_cell()
    slow = replace(cell.engine, command=(*cell.engine.command, "--step-ms", "2000"))
    limit = r"bench did not end within 2 s \(workload.timeout_s\)"
    with pytest.raises(PhaseTimeout, match=limit), within("bench", 2.0):
        bench(replace(cell, engine=slow), tmp_path)


def test_a_client_that_is_missing_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sglang", None)
    with pytest.raises(ConfigError, match="make install"):
        check_installed()


def test_the_client_s_line_is_not_strict_json() -> None:
    """Why bench_serving.py parses with Python's own reader."""
    assert json.loads('{"request_rate": Infinity}')["request_rate"] == float("inf")
