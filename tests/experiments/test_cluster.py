"""Sweeps on a cluster without one: what is asked of it, what a job does on its node, what is said when one is gone."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import secrets
from experiments.cluster import board, fate, queue, unit
from experiments.cluster.batch import Batch, chunks, code
from experiments.cluster.hydra_keys import launcher
from experiments.cluster.queue import Job, Jobs
from experiments.cluster.spec import LauncherSpec, check, parameters
from experiments.cluster.submission import asked, groups
from experiments.errors import ConfigError
from experiments.plan import Invocation, expand
from experiments.record import now, write_json
from experiments.spec import SpeculationSpec, StudySpec
from experiments.status import collect as status
from tests.experiments.driver import begin, collect, fake_command, finish, small, wait_for_stage
from tests.experiments.processes import MARK, wait_gone

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from experiments.spec import CellSpec


@given(st.integers(0, 60), st.integers(1, 9))
def test_chunks_are_all_the_names_in_order_and_even(count: int, size: int) -> None:
    names = [str(index) for index in range(count)]
    made = chunks(names, size)
    assert [name for chunk in made for name in chunk] == names
    lengths = {len(chunk) for chunk in made}
    assert max(lengths, default=0) <= size
    assert max(lengths, default=0) - min(lengths, default=0) <= 1


@pytest.mark.parametrize(
    ("given", "key"),
    [
        (LauncherSpec(partition="gpu"), "launcher.partition"),
        (LauncherSpec(name="local", qos="high"), "launcher.qos"),
        (LauncherSpec(name="slurm", cells_per_job=0), "launcher.cells_per_job"),
        (LauncherSpec(name="slurm", gpus_per_node=-1), "launcher.gpus_per_node"),
        (LauncherSpec(name="slurm", cpus_per_task=0), "launcher.cpus_per_task"),
        (LauncherSpec(name="slurm", mem_gb=-4), "launcher.mem_gb"),
        (LauncherSpec(name="slurm", time_min=2), "launcher.notice_s"),
        (LauncherSpec(name="slurm", sbatch={"signal": "USR2@9"}), "launcher.sbatch"),
        (LauncherSpec(name="slurm", sbatch={"gpus-per-node": "8"}), "launcher.sbatch"),
    ],
)
def test_what_has_no_effect_or_belongs_to_the_launcher_is_refused(given: LauncherSpec, key: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}: .*allowed"):
        check(given)


def test_other_parameters_go_to_sbatch_and_term_comes_before_the_end() -> None:
    spec = LauncherSpec(name="slurm", notice_s=60, sbatch={"reservation": "r", "get-user-env": ""})
    check(spec)
    assert parameters(spec) == {"reservation": "r", "get-user-env": True}
    assert asked(spec) == {"signal": "TERM@60", "requeue": True, "reservation": "r", "get-user-env": True}


def test_the_plugin_s_keys_are_ours() -> None:
    plain = dict.fromkeys(("comment", "exclude", "cpus_per_gpu", "gpus_per_task", "mem_per_gpu", "mem_per_cpu"))
    values = {"cluster": "slurm", "timeout_min": 30, "partition": "p", "gres": "gpu:2", **plain}
    values["additional_parameters"] = {"mail_user": "me", "hold": True}
    assert launcher(values) == {
        "name": "slurm",
        "time_min": 30,
        "partition": "p",
        "cells_per_job": 1,
        "sbatch": {"gres": "gpu:2", "mail-user": "me", "hold": ""},
    }


@pytest.mark.parametrize(
    ("told", "class_"),
    [
        ({}, "interrupted"),
        ({"JobState": "RUNNING", "Restarts": "0", "PreemptTime": "None"}, "time_limit"),
        ({"JobState": "RUNNING", "Restarts": "0", "PreemptTime": "2026-01-01T00:00:00"}, "preempted"),
        ({"JobState": "COMPLETING", "Restarts": "1"}, "preempted"),
        ({"JobState": "COMPLETING", "Restarts": "0", "PreemptTime": "None"}, "cancelled"),
    ],
)
def test_why_a_job_is_being_stopped(told: dict[str, str], class_: str) -> None:
    assert fate.cause(told) == class_


@pytest.fixture
def batch(make_cell: Callable[..., CellSpec], tmp_path: Path) -> Batch:
    """Three cells that were submitted from this very tree."""
    specs = [
        make_cell(speculation=SpeculationSpec(algorithm="nextn", num_steps=k, num_draft_tokens=k + 1))
        for k in (1, 2, 3)
    ]
    study = StudySpec(study="s", output_dir=str(tmp_path / "out"), launcher=LauncherSpec(name="slurm"))
    invocation = Invocation(id="0123", cells=3, started_utc=now())
    made = Batch(study=study, cells=expand(specs), invocation=invocation, code=code())
    made.write()
    return made


def submitted(batch: Batch, *states: str) -> tuple[Job, ...]:
    jobs = tuple(
        Job(id=str(number), cells=(name,), state=state)
        for number, (name, state) in enumerate(zip(batch.names, states, strict=False))
    )
    queue.write(batch.directory, Jobs("local", jobs))
    return jobs


def last(batch: Batch, name: str) -> dict[str, Any]:
    found = batch.last(name)
    assert found is not None
    return found[1]


def test_a_batch_reads_back_as_it_was_written(batch: Batch) -> None:
    assert Batch.read(batch.directory) == batch
    spec = replace(batch.cells[0].spec, env={"A": "1"})
    lists = replace(batch.cells[0], spec=spec, axes={"engine.command": ("a", "b"), "env.A": "1"})
    other = replace(batch, cells=(lists,), invocation=replace(batch.invocation, id="4567"))
    other.write()
    assert Batch.read(other.directory).cells[0].spec == spec


def test_a_secret_that_jobs_would_be_told_by_a_file_is_refused(batch: Batch) -> None:
    env = {"SOME_API_TOKEN": "planted-4f1c9a7e"}
    secrets.learn(env)
    cell = replace(batch.cells[0], spec=replace(batch.cells[0].spec, env=env))
    secret = replace(batch, cells=(cell,), invocation=replace(batch.invocation, id="4567"))
    with pytest.raises(ConfigError, match="no secret is written"):
        secret.write()
    assert not secret.directory.exists()


def test_jobs_and_their_cells() -> None:
    names = tuple("abcdefg")
    slurm = LauncherSpec(name="slurm", cells_per_job=3)
    assert groups(names, slurm) == [("a",), ("b", "c", "d"), ("e", "f", "g")]
    assert groups(names[:3], slurm) == [names[:3]]
    assert groups(names, LauncherSpec(name="local", cells_per_job=3)) == [names]


def test_code_that_changed_since_is_not_measured(batch: Batch) -> None:
    assert unit.run(replace(batch, code="another"), batch.names[:1], "first") == 3
    told = last(batch, batch.names[0])
    assert (told["status"], told["failure"]["class"]) == ("invalid", "measurement")
    assert "code has changed" in told["failure"]["message"]


def test_without_a_baseline_the_others_say_why_they_are_not_measured(batch: Batch) -> None:
    submitted(batch, "CANCELLED")
    assert unit.run(batch, batch.names[1:], "others") == 3
    assert [last(batch, name)["failure"]["class"] for name in batch.names[1:]] == ["cancelled"] * 2
    assert "no baseline: job 0 CANCELLED" in last(batch, batch.names[1])["failure"]["message"]
    assert batch.settled(batch.names[1]) is None, "another call may measure it"


def test_other_hardware_than_the_baseline_s_is_refused(batch: Batch) -> None:
    write_valid(batch, batch.names[0], hardware="8 x Something Else")
    assert unit.run(batch, batch.names[1:2], "others") == 3
    told = last(batch, batch.names[1])["failure"]
    assert told["class"] == "measurement"
    assert "8 x Something Else" in told["message"]
    assert "launcher.constraint" in told["message"]


@pytest.mark.parametrize(
    ("state", "class_"), [("CANCELLED", "cancelled"), ("NODE_FAIL", "unfinished"), ("TIMEOUT", "time_limit")]
)
def test_cells_that_a_job_never_came_to_have_a_record_too(batch: Batch, state: str, class_: str) -> None:
    (job,) = submitted(batch, state)
    fate.settle(batch, job, job.cells)
    told = last(batch, job.cells[0])
    assert (told["status"], told["failure"]["class"]) == ("invalid", class_)
    assert state in told["failure"]["message"]


def test_a_killed_job_s_record_is_given_its_reason(batch: Batch) -> None:
    (job,) = submitted(batch, "OUT_OF_MEMORY")
    fate.refuse(batch, batch.cells[0], "unfinished", "as at the start")
    fate.settle(batch, job, job.cells)
    assert last(batch, job.cells[0])["failure"]["class"] == "out_of_memory"
    assert len([*batch.tries(job.cells[0])]) == 1


def test_cells_are_taken_in_order_until_there_is_a_baseline_then_the_least_tried_first(batch: Batch) -> None:
    fate.refuse(batch, batch.cells[0], "time_limit", "")
    fate.refuse(batch, batch.cells[1], "time_limit", "")
    assert unit.following(batch, batch.names, "all") == batch.names[0]
    write_valid(batch, batch.names[0])
    assert unit.following(batch, batch.names, "all") == batch.names[2]
    assert unit.following(batch, batch.names, "first") is None


def test_status_shows_what_waits_and_what_runs(batch: Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submitted(batch, "RUNNING", "PENDING", "PENDING")
    monkeypatch.setattr(queue, "refreshed", lambda _, jobs: jobs)
    fate.refuse(batch, batch.cells[0], "unfinished", "as at the start")
    fate.refuse(batch, batch.cells[1], "preempted", "")
    rows = {row.cell: row for row in status(tmp_path / "out")}
    assert [rows[name].status for name in batch.names] == ["running", "queued", "queued"]
    assert "job 0 RUNNING" in rows[batch.names[0]].reason
    assert "attempt 1 was stopped (preempted); job 1 PENDING" in rows[batch.names[1]].reason
    assert [one.begun for one in board.cells(tmp_path / "out")] == [True, True, False]


def test_what_slurm_says_is_read_and_what_it_forgot_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"squeue": "7_0|RUNNING|None|n[1-2]\n7_1|PENDING|Resources|\n"}
    monkeypatch.setattr(queue, "ask", lambda program, *_: said.get(program))
    jobs = Jobs("slurm", tuple(Job(id=name, cells=("c",)) for name in ("7_0", "7_1", "6")))
    seen = queue.refreshed(tmp_path, jobs).jobs
    assert [(job.state, job.node, job.over) for job in seen] == [
        ("RUNNING", "n[1-2]", False),
        ("PENDING", "", False),
        (queue.GONE, "", True),
    ]
    said["sacct"] = "6|CANCELLED by 0|n3\n"
    assert queue.refreshed(tmp_path, jobs).jobs[2].state == "CANCELLED"
    said.clear()
    assert queue.refreshed(tmp_path, jobs) == jobs, "a controller that does not answer changes nothing"


@pytest.mark.process
def test_a_local_job_outlives_its_driver_and_is_collected(tmp_path: Path, checkpoint: Path) -> None:
    sweep = ("hydra.mode=MULTIRUN", "hydra/launcher=submitit_local", "speculation.num_steps=2,3")
    driver = begin(
        small(tmp_path, checkpoint, *sweep, engine=fake_command(step_ms=10.0)), tmp_path, **{MARK: str(tmp_path)}
    )
    wait_for_stage(driver, tmp_path / "out", "gates", 60.0)
    driver.send_signal(signal.SIGINT)
    stopped = finish(driver, tmp_path)
    assert (stopped.code, "experiments.collect" in stopped.line["error"]) == (3, True)
    run = collect(tmp_path)
    assert run.code == 0, run.err
    assert [cell["verdict"] for cell in run.line["cells"]] == ["baseline", "inconclusive"]
    assert [len(entry["attempts"]) for entry in run.line["cluster"]] == [1, 1]
    assert wait_gone(str(tmp_path), 5.0) == []


def write_valid(batch: Batch, name: str, **environment_: str) -> None:
    fate.refuse(batch, batch.cell(name), "unfinished", "")
    found = batch.last(name)
    assert found is not None
    attempt, record = found
    place = record["environment"] | environment_
    write_json(
        attempt / "record.json",
        record | {"status": "valid", "verdict": "baseline", "failure": None, "environment": place},
    )
