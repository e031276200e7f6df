"""The jobs of one batch and what the queue says of them: one file beside the batch, brought up to date by asking.

With the standard library alone, for `python -m experiments.status` runs where nothing is installed. The surprise:
Slurm forgets a finished job within minutes where there is no accounting, so what it said last is kept in the file.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from experiments.record import write_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Cluster = Literal["slurm", "local"]

FILE = "jobs.json"
PLACE = "batches"
"""Of batches, beside a study's cells; each has a directory there that holds the file."""
TIMEOUT_S = 10.0
"""For an answer of Slurm's; a controller that is busy is asked again later."""
GONE = "GONE"
"""Neither the queue nor the accounting knows it any more."""
OVER = (
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL"),
    *("OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "REVOKED", GONE),
)


@dataclass(frozen=True, kw_only=True)
class Job:
    id: str
    cells: tuple[str, ...]
    state: str = "PENDING"
    """Slurm's word."""
    reason: str = ""
    node: str = ""

    @property
    def over(self) -> bool:
        return self.state in OVER

    def heard(self, news: dict[str, str]) -> Job:
        return Job(cells=self.cells, **(self._words() | news))

    def _words(self) -> dict[str, str]:
        return {"id": self.id, "state": self.state, "reason": self.reason, "node": self.node}

    def told(self) -> str:
        why = f" ({self.reason})" if self.reason not in ("", "None") else ""
        return f"job {self.id} {self.state}{why}" + (f" on {self.node}" if self.node else "")


@dataclass(frozen=True)
class Jobs:
    cluster: Cluster
    jobs: tuple[Job, ...]
    concluded: bool = False
    """Every cell has a record that will not change, and somebody has shown them."""


def read(directory: Path) -> Jobs:
    values = json.loads((directory / FILE).read_text())
    jobs = tuple(Job(**{**job, "cells": tuple(job["cells"])}) for job in values["jobs"])
    return Jobs(values["cluster"], jobs, values["concluded"])


def write(directory: Path, jobs: Jobs) -> None:
    write_json(directory / FILE, asdict(jobs))


def refreshed(directory: Path, jobs: Jobs) -> Jobs:
    """As the queue has them now; unchanged where it does not answer."""
    alive = [job.id for job in jobs.jobs if not job.over]
    if not alive:
        return jobs
    told = _slurm(alive) if jobs.cluster == "slurm" else {name: _local(name, directory) for name in alive}
    if told is None:
        return jobs
    return replace(jobs, jobs=tuple(job.heard(told.get(job.id, {})) for job in jobs.jobs))


def cancel(jobs: Jobs) -> None:
    ids = [job.id for job in jobs.jobs if not job.over]
    ask("scancel" if jobs.cluster == "slurm" else "kill", *ids)


def this_job() -> str | None:
    """Its id, inside one; as the queue calls it."""
    array, task = (os.environ.get(f"SLURM_ARRAY_{name}") for name in ("JOB_ID", "TASK_ID"))
    whole = f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")
    return whole or os.environ.get("SUBMITIT_LOCAL_JOB_ID")


def ask(*command: str) -> str | None:
    """What it prints; None where it is not there, fails, or takes too long."""
    if shutil.which(command[0]) is None:
        return None
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return None
    return answer.stdout if answer.returncode == 0 else None


def _slurm(ids: Iterable[str]) -> dict[str, dict[str, str]] | None:
    """State, reason and node by id; what has left the queue is looked up in the accounting, if there is one."""
    listed = ask("squeue", "--me", "--noheader", "--array", "--states=all", "--format=%i|%T|%r|%N")
    if listed is None:
        return None
    found = {}
    for line in listed.splitlines():
        name, state, reason, node = line.strip().split("|")
        found[name] = {"state": state, "reason": reason, "node": node}
    if forgotten := [name for name in ids if name not in found]:
        found |= _accounted(forgotten)
    return {name: found[name] for name in ids}


def _accounted(ids: Iterable[str]) -> Mapping[str, dict[str, str]]:
    command = ("sacct", "--noheader", "--allocations", "--parsable2", "--format=JobID,State,NodeList")
    found = {name: {"state": GONE, "reason": ""} for name in ids}
    for line in (ask(*command, f"--jobs={','.join(found)}") or "").splitlines():
        name, state, node = line.split("|")
        if name in found:
            found[name] = {"state": state.split()[0], "reason": "", "node": node}
    return found


def _local(pid: str, directory: Path) -> dict[str, str]:
    """submitit's own process, known by its argument: a pid may mean another one by now."""
    try:
        alive = str(directory).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        alive = False
    return {"state": "RUNNING" if alive else GONE}
