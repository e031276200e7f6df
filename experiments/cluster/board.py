"""Which cells are in the queue of a cluster now, for `python -m experiments.status`; with the standard library alone.

The surprise: a cell's attempts do not say that it waits, for it has none, or one that a requeued job will repeat. The
batch does, and it is asked only while nobody has concluded it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.cluster import queue
from experiments.record import FILE, attempts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from experiments.cluster.queue import Job


@dataclass(frozen=True)
class Submitted:
    cell: Path
    """The directory of its attempts."""
    job: Job
    begun: bool
    """There is an attempt of this batch's."""


def cells(output: Path) -> Iterator[Submitted]:
    """Those of jobs that are not over."""
    for file in output.glob(f"*/{queue.PLACE}/*/{queue.FILE}"):
        jobs = queue.read(file.parent)
        if jobs.concluded:
            continue
        for job in queue.refreshed(file.parent, jobs).jobs:
            for name in () if job.over else job.cells:
                cell = file.parents[2] / name
                yield Submitted(cell, job, begun=last_call(cell) == file.parent.name)


def last_call(cell: Path) -> str | None:
    """The call that the newest attempt belongs to."""
    for attempt in reversed(attempts(cell)):
        if (attempt / FILE).exists():
            call: str = json.loads((attempt / FILE).read_text())["invocation"]["id"]
            return call
    return None
