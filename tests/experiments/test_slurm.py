"""Sweeps on a real Slurm, which the test starts itself: every cell is told about, whatever happened to its job."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from experiments.claim import running
from experiments.cluster import queue
from tests.experiments import slurm_cluster
from tests.experiments.driver import (
    ROOT,
    Run,
    attempts,
    begin,
    collect,
    fake_command,
    finish,
    small,
)
from tests.experiments.processes import MARK, marked, wait_gone
from tests.experiments.slurm_cluster import SlurmCluster, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(slurm_cluster.missing() is not None, reason=str(slurm_cluster.missing())),
]
SEED = re.compile(r"random_seed=(\d+)")
"""What a cell's name tells it by."""
SLOW_MS = 40.0
"""A step's time in cells that somebody wants to disturb: their gates take seconds."""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster.running(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def submit(slurm: SlurmCluster, tmp_path: Path, checkpoint: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """run.py under way: a cell for each engine, one per job unless told otherwise."""
    drivers: list[subprocess.Popen[str]] = []

    def run(engines: list[tuple[str, ...]], *overrides: str) -> subprocess.Popen[str]:
        cells = [
            [f"engine.random_seed={index}", f"engine.command=[{','.join(engine)}]"]
            for index, engine in enumerate(engines)
        ]
        launcher = (
            "engine.ready_timeout_s=60",
            "launcher=slurm",
            "launcher.cells_per_job=1",
            "launcher.array_parallelism=1",
        )
        given = {override.partition("=")[0] for override in overrides}
        kept = [one for one in launcher if one.partition("=")[0] not in given]
        line = small(tmp_path, checkpoint, *kept, *overrides, f"cells={cells}".replace("'", '"'))
        drivers.append(begin(line, tmp_path, **slurm.env, **{MARK: str(tmp_path)}))
        return drivers[-1]

    yield run
    for driver in drivers:
        if driver.poll() is None:
            driver.kill()
            driver.communicate()


def job_of(output: Path, cell: str) -> str:
    (file,) = output.glob(f"*/{queue.PLACE}/*/{queue.FILE}")
    return next(job.id for job in queue.read(file.parent).jobs if cell in job.cells)


def outcomes(run: Run) -> dict[str, list[str]]:
    """Of every attempt, by the cell's seed."""
    return {
        SEED.findall(entry["name"])[0]: [one["outcome"] for one in entry["attempts"]] for entry in run.line["cluster"]
    }


def failure(run: Run, cell: int) -> dict[str, Any]:
    told: dict[str, Any] = run.record(cell)["failure"]
    return told


def test_a_cancelled_job_ends_its_server_and_says_so_in_its_record(
    submit: Callable[..., subprocess.Popen[str]], slurm: SlurmCluster, tmp_path: Path
) -> None:
    driver = submit([fake_command(), fake_command(step_ms=SLOW_MS)])
    output = tmp_path / "out"
    attempt = stage_of(output, "1", "gates", driver)
    slurm.ask("scancel", job_of(output, attempt.parent.name))
    run = finish(driver, tmp_path, 120.0)
    assert run.code == 3, run.err
    assert outcomes(run) == {"0": ["baseline"], "1": ["cancelled"]}
    told = failure(run, 1)
    assert (told["class"], told["phase"]) == ("cancelled", "gates")
    assert run.record(1)["baseline"] == run.record(0)["name"], "its evidence came from another job"
    assert run.record(0)["environment"]["job"]["id"] != run.record(1)["environment"]["job"]["id"]
    assert "nextn" in run.out
    assert marked(str(tmp_path)) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_six_cells_and_everything_that_can_happen_to_a_job(
    submit: Callable[..., subprocess.Popen[str]],
    slurm: SlurmCluster,
    tmp_path: Path,
    blank_store: Callable[[Path], Path],
) -> None:
    slow = fake_command(step_ms=SLOW_MS)
    engines = [fake_command(), fake_command("die", fault_from=3), slow, fake_command(), slow, fake_command()]
    output = tmp_path / "out"
    output.mkdir()
    blank_store(output / "mlflow.db")
    driver = submit(engines, "tracking=mlflow")

    preempted = stage_of(output, "2", "gates", driver)
    slurm.ask("sbatch", "--partition=urgent", "--exclusive", "--output=/dev/null", "--wrap", "sleep 1")
    wait_for(lambda: record(preempted)["failure"]["class"] == "preempted", "preemption")
    driver.kill()
    driver.communicate()

    cancelled = stage_of(output, "4", "gates")
    assert "queued" in status(output, slurm), "5, and what was preempted"
    slurm.ask("scancel", job_of(output, cancelled.parent.name))

    early = collect(tmp_path, "--now", **slurm.env)
    assert (early.code, "still to come" in early.line["error"]) == (3, True)
    run = collect(tmp_path, **slurm.env)
    assert run.code == 3
    expected = {
        "0": ["baseline"],
        "1": ["server_died"],
        "2": ["preempted", "inconclusive"],
        "3": ["inconclusive"],
        "4": ["cancelled"],
        "5": ["inconclusive"],
    }
    assert outcomes(run) == expected
    assert [cell["status"] for cell in run.line["cells"]] == ["valid", "invalid", "valid", "valid", "invalid", "valid"]
    assert run.line["cluster"][2]["attempts"][1]["restarts"] == 1
    assert wait_gone(str(tmp_path), 5.0) == []
    assert filed(output) == sorted(outcome for tries in expected.values() for outcome in tries)
    again = collect(tmp_path, **slurm.env)
    assert (again.code, outcomes(again)) == (3, expected)
    assert filed(output) == sorted(outcome for tries in expected.values() for outcome in tries), "nothing twice"

    resumed = finish(submit([fake_command(), fake_command(), slow, *engines[3:]], "resume=true"), tmp_path, 300.0)
    assert resumed.code == 0, resumed.err
    taken = [cell["record"].split("/")[-2] for cell in resumed.line["cells"]]
    assert taken == ["attempt-1", "attempt-1", "attempt-2", "attempt-1", "attempt-2", "attempt-1"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_time_limit_ends_the_cell_under_way_and_the_job_goes_on(
    submit: Callable[..., subprocess.Popen[str]], slurm: SlurmCluster, tmp_path: Path
) -> None:
    """Slurm gives notice up to a minute early, and looks for it twice a minute."""
    limits = ("launcher.cells_per_job=9", "launcher.time_min=2", "launcher.notice_s=60", "launcher.requeues=1")
    driver = submit([fake_command(), fake_command("stall", fault_from=8), fake_command()], *limits)
    run = finish(driver, tmp_path, 400.0)
    assert run.code == 3, run.err
    assert outcomes(run) == {"0": ["baseline"], "1": ["time_limit"] * 2, "2": ["inconclusive"]}
    assert failure(run, 1)["phase"] == "gates"
    assert wait_gone(str(tmp_path), 5.0) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_without_a_baseline_nothing_is_measured_and_that_is_said(
    submit: Callable[..., subprocess.Popen[str]], slurm: SlurmCluster, tmp_path: Path
) -> None:
    driver = submit([fake_command(step_ms=SLOW_MS), fake_command(), fake_command()])
    output = tmp_path / "out"
    first = stage_of(output, "0", "gates", driver)
    slurm.ask("scancel", job_of(output, first.parent.name))
    run = finish(driver, tmp_path, 300.0)
    assert run.code == 3
    assert outcomes(run) == {"0": ["cancelled"], "1": ["cancelled"], "2": ["cancelled"]}
    assert "no baseline" in failure(run, 2)["message"]
    assert len([*attempts(output)]) == 3


def stage_of(output: Path, seed: str, stage: str, driver: subprocess.Popen[str] | None = None) -> Path:
    """The attempt at a cell, once it is in this stage."""
    found: list[Path] = []

    def reached() -> bool:
        assert driver is None or driver.poll() is None, driver.communicate()
        found[:] = [
            attempt
            for attempt in output.glob(f"*/*_random_seed={seed}_*/attempt-*")
            if (claim := running(attempt)) and claim["stage"] == stage
        ]
        return bool(found)

    wait_for(reached, f"{stage} of {seed}", 300.0)
    return found[0]


def record(attempt: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((attempt / "record.json").read_text())
    return read


def status(output: Path, slurm: SlurmCluster) -> str:
    command = [sys.executable, "-m", "experiments.status", str(output)]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | slurm.env, capture_output=True, text=True, check=True
    ).stdout


def filed(output: Path) -> list[str]:
    """Outcomes of the cells in the tracking store."""
    from mlflow.tracking import MlflowClient  # noqa: PLC0415 - seconds of imports

    client = MlflowClient(f"sqlite:///{output / 'mlflow.db'}")
    found = client.search_runs([one.experiment_id for one in client.search_experiments()])
    return sorted(
        run.data.tags.get("failure") or run.data.tags["verdict"] for run in found if "identity" in run.data.tags
    )
