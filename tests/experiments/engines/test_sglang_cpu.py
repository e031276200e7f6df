"""The real SGLang on a CPU, launched twice by run.py: benchmarked, gated byte by byte, recorded, filed, and gone."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from tests.experiments.driver import Run, driver_env
from tests.experiments.engines.real_sglang import ENVIRONMENT, command, make_model, needs_it
from tests.experiments.processes import MARK, marked

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(1800), needs_it]

PROMPTS = 20
SMALL = ("workload.num_prompts=4", "gate.parity_tokens=64")


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The preset, shortened."""
    directory = tmp_path_factory.mktemp("sglang")
    line = command(directory, make_model(directory / "model"), "experiment=sglang_cpu", *SMALL)
    environment = driver_env(**ENVIRONMENT, **{MARK: str(directory)})
    done = subprocess.run(line, env=environment, cwd=directory, capture_output=True, text=True, timeout=1700)
    return Run(done.returncode, done.stdout, done.stderr, directory)


@pytest.fixture
def records(twice: Run) -> list[dict[str, Any]]:
    assert twice.code == 0, twice.err
    return [twice.record(cell) for cell in range(2)]


def test_both_cells_are_valid_and_the_second_is_held_against_the_first(records: list[dict[str, Any]]) -> None:
    assert [one["status"] for one in records] == ["valid", "valid"]
    assert [one["verdict"] for one in records] == ["baseline", "inconclusive"]
    assert records[1]["change"]["class"] == "same"
    assert [one["activation"]["ok"] for one in records] == [True, True]


def test_two_launches_answer_with_the_same_bytes(records: list[dict[str, Any]], twice: Run) -> None:
    parity = records[1]["gates"]["byte_parity"]
    assert (parity["status"], parity["required"]) == ("pass", True), parity["reason"]
    evidence = json.loads((Path(twice.line["cells"][1]["record"]).parent / "gate.json").read_text())
    asked = [prompt for prompt in evidence["probe"]["prompts"] if not prompt["canary"]]
    assert len(asked) == PROMPTS
    answers = {tuple(output["ids"]) for output in evidence["probe"]["outputs"]}
    assert len(answers) > PROMPTS // 2, "a model that answers everything alike would prove nothing"


def test_other_requests_change_no_answer(records: list[dict[str, Any]]) -> None:
    for record in records:
        pollution = record["gates"]["state_pollution"]
        assert (pollution["status"], pollution["required"]) == ("pass", True), pollution["reason"]


def test_what_the_engine_does_not_promise_is_reported_and_binds_nobody(records: list[dict[str, Any]]) -> None:
    assert records[1]["gates"]["logit_digest"]["required"] is False
    assert records[1]["gates"]["lossless"]["status"] == "not_applicable"


def test_the_figures_come_from_sglang_s_own_client(records: list[dict[str, Any]], twice: Run) -> None:
    for index, record in enumerate(records):
        metrics = record["metrics"]
        assert metrics["accept_length"] == 1.0
        assert metrics["accept_source"] == "definition"
        assert metrics["mean_ttft_ms"] > 0
        assert metrics["output_tokens"] == 4 * 64
        rows = Path(twice.line["cells"][index]["record"]).with_name("bench.jsonl").read_text().splitlines()
        assert json.loads(rows[-1])["server_info"]["version"] == "0.5.23"


def test_the_decision_is_in_mlflow(twice: Run) -> None:
    client = MlflowClient(tracking_uri=f"sqlite:///{twice.directory}/out/mlflow.db")
    experiment = client.get_experiment_by_name("sglang_cpu")
    runs = client.search_runs([experiment.experiment_id])
    verdicts = {run.data.tags.get("verdict") for run in runs if "mlflow.parentRunId" in run.data.tags}
    assert verdicts == {"baseline", "inconclusive"}


def test_nothing_is_left(twice: Run) -> None:
    assert twice.code == 0
    assert marked(str(twice.directory)) == []
