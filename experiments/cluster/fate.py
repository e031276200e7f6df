"""What becomes of a cell whose job was stopped: why, in its record, and whether the job goes on.

A signal does not say why it was sent, so Slurm is asked. The surprise: when. A requeued job has forgotten why it was
stopped, so the job itself writes that down, with its server gone and its record whole already; for a job that was
killed, or that never came to a cell, the collector does.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any

from experiments.cell import Entry, opening
from experiments.cluster import queue
from experiments.cluster.batch import Batch
from experiments.errors import MEANING
from experiments.interrupts import ignore
from experiments.record import FILE, new_attempt, now, write_json
from gates.verdict import INVALID

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from experiments.cluster.batch import Try
    from experiments.errors import FailureClass, Interrupted
    from experiments.plan import Cell

CLASSES: dict[str, FailureClass] = {
    "CANCELLED": "cancelled",
    "TIMEOUT": "time_limit",
    "DEADLINE": "time_limit",
    "PREEMPTED": "preempted",
    "OUT_OF_MEMORY": "out_of_memory",
}
"""By the state of a job that is over; any other leaves a cell unfinished."""


def interrupted(directory: Path, names: Sequence[str], interrupt: Interrupted) -> int:
    """Inside a job that is being stopped: say why in the record of the cell that was under way; go on if it may."""
    ignore()
    batch, job = Batch.read(directory), queue.this_job()
    told = fields_of(job)
    class_ = cause(told)
    for name in names:
        last = batch.last(name)
        if last and class_of(last) == "interrupted":
            amend(*last, class_, f"{interrupt} to job {job}: {MEANING[class_]}")
    print(f"stopped by {interrupt}: {MEANING[class_]}", file=sys.stderr)
    if told.get("JobState") == "RUNNING" and any(not batch.settled(name) for name in names):
        go_on(batch, class_, job)
    return INVALID


def fields_of(job: str | None) -> dict[str, str]:
    """What Slurm says of this job; nothing outside of one."""
    told = queue.ask("scontrol", "show", "job", "--oneliner", job) if job and "SLURM_JOB_ID" in os.environ else None
    return dict(re.findall(r"(\w+)=(\S*)", told or ""))


def cause(told: Mapping[str, str]) -> FailureClass:
    """Why this job is being stopped. One that is being killed shows no more than that, and how often it was begun."""
    if not told:
        return "interrupted"
    if int(told.get("Restarts", "0")) > restarts() or told.get("PreemptTime", "None") != "None":
        return "preempted"
    return "time_limit" if told["JobState"] == "RUNNING" else "cancelled"


def restarts() -> int:
    """Of the run of the job that this process is part of."""
    return int(os.environ.get("SLURM_RESTART_COUNT", "0"))


def go_on(batch: Batch, class_: FailureClass, job: str | None) -> None:
    """The same job once more, for what is not settled: it has had notice, and would end for good where it stops."""
    allowed = batch.study.launcher.requeues
    if class_ == "time_limit" and restarts() >= allowed:
        print(f"begun {restarts() + 1} times (launcher.requeues={allowed}): the rest is not measured", file=sys.stderr)
    elif job is None or queue.ask("scontrol", "requeue", job) is None:
        print("Slurm did not requeue this job: the rest is not measured", file=sys.stderr)


def refuse(batch: Batch, cell: Cell, class_: FailureClass, message: str) -> None:
    """The record of a cell that nothing was started for. Raises StorageError."""
    directory = new_attempt(batch.place / cell.name)
    entry = Entry(
        cell=cell,
        study=batch.study.study,
        invocation=batch.invocation,
        identity="",
        directory=directory,
        baseline=None,
    )
    write_json(directory / FILE, opening(entry) | failure(class_, "start", message) | {"ended_utc": now()})


def settle(batch: Batch, job: queue.Job, names: Sequence[str]) -> None:
    """These cells of a job that is over: each has a record of what happened. Raises StorageError."""
    known = CLASSES.get(job.state)
    for name in names:
        last = batch.last(name)
        class_ = class_of(last)
        if last is None:
            refuse(
                batch, batch.cell(name), known or stopped_by(batch, job), f"{job.told()}: it never came to this cell"
            )
        elif class_ in ("preempted", "time_limit") and known == "cancelled":
            refuse(batch, batch.cell(name), known, f"{job.told()}: it never came back to this cell")
        elif class_ in ("unfinished", "interrupted") or (class_ == "cancelled" and known not in (None, class_)):
            amend(*last, known or class_, f"{MEANING[known or class_]}; {job.told()}")


def stopped_by(batch: Batch, job: queue.Job) -> FailureClass:
    """What ended a job that ended by itself: what its last cell's record says."""
    said = [class_of(batch.last(name)) for name in job.cells]
    return "time_limit" if "time_limit" in said else "unfinished"


def class_of(last: Try | None) -> FailureClass | None:
    failure: dict[str, FailureClass] = (last[1]["failure"] or {}) if last else {}
    return failure.get("class")


def is_told(batch: Batch, job: queue.Job, names: Sequence[str]) -> bool:
    """Their records say what Slurm says of the job."""
    known = CLASSES.get(job.state)
    return known is not None and all(class_of(batch.last(name)) == known for name in names)


def amend(attempt: Path, record: dict[str, Any], class_: FailureClass, message: str) -> None:
    write_json(attempt / FILE, record | failure(class_, record["failure"]["phase"], message))


def failure(class_: FailureClass, phase: str, message: str) -> dict[str, Any]:
    return {
        "failure": {"class": class_, "phase": phase, "message": message, "log_tail": ""},
        "reason": f"{phase}: {message}",
    }
