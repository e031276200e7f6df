"""run.py mode=ab on the fake engine, whose steps are as long as it is told."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from analysis.sequence import fewest_blocks
from tests.experiments.driver import Run, fake_command, small, start

if TYPE_CHECKING:
    from collections.abc import Callable

    Go = Callable[..., Run]

pytestmark = pytest.mark.process

TIMED = ("mode=ab", "study=ab", "ab.prompts=1", "ab.floor_blocks=2", "ab.budget_s=60")


def arm(*flags: str) -> str:
    """An override for either arm: flags behind the engine's."""
    return f'["engine.extra_args=[{",".join(flags)}]"]'


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared, so that one floor serves all."""
    return tmp_path_factory.mktemp("ab")


@pytest.fixture(scope="module")
def go(directory: Path, checkpoint: Path) -> Go:
    def run(*overrides: str) -> Run:
        command = small(directory, checkpoint, *TIMED, *overrides, engine=fake_command(step_ms=4.0))
        return start(command, directory)

    return run


@pytest.fixture(scope="module")
def slower(go: Go) -> Run:
    return go(f"ab.candidate={arm('--step-ms', '40')}", "ab.hypothesis=a pause between steps", "tracking=mlflow")


def decision(run: Run) -> dict[str, Any]:
    (line,) = run.line["decisions"]
    record: dict[str, Any] = json.loads(Path(line["record"]).read_text())
    return record


def test_a_slower_candidate_passes_its_gates_and_is_rejected_for_its_speed(slower: Run) -> None:
    assert slower.code == 1, slower.err
    (line,) = slower.line["decisions"]
    assert (line["verdict"], line["rule"], line["class"], line["stop"]) == ("reject", "slower", "same", "decided")
    assert line["step_time"]["low"] > 0.5
    assert line["accept"] == {"estimate": 0.0, "low": 0.0, "high": 0.0}
    assert [cell["verdict"] for cell in slower.line["cells"]] == ["baseline", "inconclusive"]
    assert "slower: step time" in slower.out


def test_its_record_holds_what_the_verdict_came_from(slower: Run) -> None:
    record = decision(slower)
    blocks, attempt = record["blocks"], Path(slower.line["decisions"][0]["record"]).parent
    assert (blocks["together"], blocks["launches"], blocks["stop"]) == (True, 2, "decided")
    assert len(blocks["orders"]) == record["comparison"]["blocks"] >= fewest_blocks()
    answers = [json.loads(line) for line in (attempt / "answers.jsonl").read_text().splitlines()]
    assert len(answers) == 4 * blocks["prompts"] * len(blocks["orders"])
    seconds = {name: sum(a["decode_s"] for a in answers if a["arm"] == name) for name in record["figures"]}
    steps = {name: sum(a["steps"] for a in answers if a["arm"] == name) for name in record["figures"]}
    for name, figures in record["figures"].items():
        assert figures["step_ms"] == pytest.approx(1e3 * seconds[name] / steps[name])
    assert record["hypothesis"] == "a pause between steps"
    assert record["activation"]["candidate"]["ok"]
    assert len((attempt / "command.txt").read_text().splitlines()) == 2
    study = attempt.parents[2]
    assert all((study / record["arms"][name]["record"]).is_file() for name in ("baseline", "candidate"))


def test_mlflow_has_it_on_the_parent_of_its_two_cells(slower: Run, directory: Path) -> None:
    from mlflow.tracking import MlflowClient  # noqa: PLC0415 - seconds of imports

    client = MlflowClient(f"sqlite:///{directory / 'out/mlflow.db'}")
    (experiment,) = client.search_experiments(filter_string="name = 'ab'")
    runs = client.search_runs([experiment.experiment_id])
    children = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    (parent,) = [run for run in runs if run not in children]
    record = decision(slower)
    assert (len(children), parent.info.status) == (2, "FINISHED")
    assert parent.data.tags["verdict"] == "reject"
    assert parent.data.tags["reason"] == record["reason"]
    compared = record["comparison"]["step_time"]["always_valid"]
    assert parent.data.metrics["ab/step_time/always_valid_estimate"] == compared["estimate"]
    assert "decision.json" in [file.path for file in client.list_artifacts(parent.info.run_id)]


def test_a_candidate_that_fails_a_gate_costs_no_block(go: Go) -> None:
    run = go(f"ab.candidate={arm('--fault', 'other_tokens')}", "gate.parity_tokens=64")
    assert run.code == 1
    record = decision(run)
    assert (record["verdict"], record["rule"]) == ("reject", "gate:byte_parity")
    assert (record["blocks"], record["comparison"]) == (None, None)
    assert record["gates"]["byte_parity"]["status"] == "fail"


def test_arms_with_different_rulers_get_no_verdict(go: Go) -> None:
    run = go('ab.candidate=["workload.output_len=24"]')
    assert run.code == 3
    record = decision(run)
    assert (record["status"], record["verdict"], record["rule"], record["blocks"]) == ("invalid", None, "ruler", None)


def test_servers_that_are_not_alive_at_once_take_turns(go: Go, directory: Path) -> None:
    run = go(f"ab.candidate={arm('--step-ms', '40')}", "ab.servers=in_turn", "ab.budget_s=3", "study=turns")
    blocks = decision(run)["blocks"]
    assert not blocks["together"]
    inside = [1 + sum(a != b for a, b in pairwise(order)) for order in blocks["orders"]]
    between = sum(a[-1] == b[0] for a, b in pairwise(blocks["orders"]))
    first = blocks["orders"][0][0] == "B"  # the baseline was launched to see what it needs
    assert blocks["launches"] == sum(inside) - between + first
    assert blocks["stop"] == "budget"


def test_a_dry_run_shows_both_arms_and_starts_nothing(go: Go) -> None:
    run = go(f"ab.candidate={arm('--step-ms', '7')}", "dry_run=true")
    assert run.code == 0
    assert run.out.count("--step-ms 4") == 2
    assert "--step-ms 7" in run.out
    assert len(run.line["dry_run"]) == 2


def test_a_misspelt_key_of_an_arm_is_found_before_anything_starts(go: Go) -> None:
    run = go('ab.candidate=["speculation.num_step=4"]')
    assert run.code == 2
    assert "num_step" in run.line["error"]
