"""Records as they come, until every cell of a batch has one that will not change: watch, file in MLflow, settle.

The driver does this once it has submitted, and `python -m experiments.collect` when the driver is gone; there is one
way. The surprise: the queue is asked only where a record is missing. That a job has ended says nothing about its
cells, and a cell's record says all there is.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from experiments.cluster import fate, queue
from experiments.cluster.batch import is_settled
from experiments.record import FILE

if TYPE_CHECKING:
    from pathlib import Path

    from filelock import FileLock

    from experiments.cluster.batch import Batch, Try
    from experiments.cluster.queue import Jobs
    from experiments.tracking import Tracker, Untracked

LOCK = "collector.lock"
LOOK_S = 1.0
"""Between two looks at the records."""
ASK_S = 5.0
"""Between two questions to Slurm, whose controller serves everybody."""


@dataclass
class Collector:
    """One at a time on a batch: only its holder writes to the tracking store, and for jobs that are over."""

    batch: Batch
    jobs: Jobs
    tracker: Tracker | Untracked
    untracked: list[Path] = field(default_factory=list)
    """Records that the tracking store did not take."""
    _filed: set[Path] = field(default_factory=set)
    _over: set[str] = field(default_factory=set)
    """Cells of jobs that are over, which have been settled."""

    def follow(self) -> None:
        """Until nothing is missing. Raises Interrupted, StorageError."""
        asked = float("-inf")
        while missing := self.look():
            if time.monotonic() - asked >= ASK_S:
                self.ask(missing)
                asked = time.monotonic()
            else:
                time.sleep(LOOK_S)
        self.jobs = replace(self.jobs, concluded=True)
        queue.write(self.batch.directory, self.jobs)

    def look(self) -> list[str]:
        """Cells without a record that will not change; what is new is told and filed."""
        return [name for name in self.batch.names if not self.seen(name)]

    def seen(self, name: str) -> bool:
        last = self.batch.last(name)
        if last is None or not (is_settled(last[1]) or name in self._over):
            return False
        if last[0] not in self._filed:
            print(f"{name}: {outcome(last[1])}", file=sys.stderr, flush=True)
            for attempt, _ in self.own(name):
                self.file(attempt)
            self._filed.add(last[0])
        return True

    def own(self, name: str) -> list[Try]:
        """What an earlier call measured is in the store under that."""
        return [*self.batch.tries(name)]

    def file(self, attempt: Path) -> None:
        if attempt not in self._filed and not self.tracker.log(attempt):
            self.untracked.append(attempt / FILE)
        self._filed.add(attempt)

    def ask(self, missing: list[str]) -> None:
        """Bring the jobs up to date, and settle what is missing from those that were over the last time already: a
        shared disk may show a job's last record later than Slurm shows its end."""
        for job in self.jobs.jobs:
            if job.over:
                fate.settle(self.batch, job, missing)
                self._over |= {*job.cells}
        self.jobs = queue.refreshed(self.batch.directory, self.jobs)
        queue.write(self.batch.directory, self.jobs)
        for name in missing:
            if not any(name in job.cells for job in self.jobs.jobs):
                self._over.add(name)
                if self.batch.last(name) is None:
                    fate.refuse(self.batch, self.batch.cell(name), "unfinished", "its job was never submitted")


def lock(batch: Batch) -> FileLock:
    """Acquired; the caller releases it."""
    from experiments.lock import measurement_lock  # noqa: PLC0415 - the same kind of lock, on another file

    path = batch.directory / LOCK
    return measurement_lock(str(path), lambda _: print("another collector is at work here; waiting", file=sys.stderr))


def outcome(record: dict[str, Any]) -> str:
    """In a few words."""
    failure = record["failure"]
    if failure:
        return f"{failure['class']} in {failure['phase']}: {failure['message']}"
    return f"{record['status']} {record['verdict'] or ''}: {record['reason']}"
