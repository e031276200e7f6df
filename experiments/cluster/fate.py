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
    from collections.abc import Iterable, Sequence
    from pathlib import Path

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
    class_ = cause(job)
    for name in names:
        last = batch.last(name)
        if last and last[1]["failure"] and last[1]["failure"]["class"] == "interrupted":
            amend(*last, class_, f"{interrupt} to job {job}: {MEANING[class_]}")
    print(f"stopped by {interrupt}: {MEANING[class_]}", file=sys.stderr)
    if class_ == "time_limit" and any(not batch.settled(name) for name in names):
        go_on(batch, job)
    return INVALID


def cause(job: str | None) -> FailureClass:
    """Why this job is being stopped."""
    told = queue.ask("scontrol", "show", "job", "--oneliner", job) if job and "SLURM_JOB_ID" in os.environ else None
    fields = dict(re.findall(r"(\w+)=(\S*)", told or ""))
    return CLASSES.get(fields.get("JobState", ""), "interrupted")


def go_on(batch: Batch, job: str | None) -> None:
    """The same job once more, for what is not settled; Slurm ends this run of it."""
    restarts, allowed = int(os.environ.get("SLURM_RESTART_COUNT", "0")), batch.study.launcher.requeues
    if job is None or batch.study.launcher.name != "slurm":
        return
    if restarts >= allowed:
        print(f"requeued {restarts} times (launcher.requeues={allowed}): the rest is not measured", file=sys.stderr)
    elif queue.ask("scontrol", "requeue", job) is None:
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


def settle(batch: Batch, job: queue.Job, names: Iterable[str]) -> None:
    """Those of these cells that a job had which is over: each has a record of what happened. Raises StorageError."""
    class_ = CLASSES.get(job.state)
    for name in names:
        if name not in job.cells:
            continue
        last = batch.last(name)
        if last is None:
            refuse(batch, batch.cell(name), class_ or "unfinished", f"{job.told()}: it never came to this cell")
        elif (last[1]["failure"] or {}).get("class") in ("unfinished", "interrupted"):
            told = last[1]["failure"]
            amend(*last, class_ or told["class"], f"{MEANING[class_] if class_ else told['message']}; {job.told()}")


def amend(attempt: Path, record: dict[str, Any], class_: FailureClass, message: str) -> None:
    write_json(attempt / FILE, record | failure(class_, record["failure"]["phase"], message))


def failure(class_: FailureClass, phase: str, message: str) -> dict[str, Any]:
    return {
        "failure": {"class": class_, "phase": phase, "message": message, "log_tail": ""},
        "reason": f"{phase}: {message}",
    }
