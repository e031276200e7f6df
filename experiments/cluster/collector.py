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
from experiments.lock import measurement_lock
from experiments.record import FILE

if TYPE_CHECKING:
    from pathlib import Path

    from filelock import FileLock

    from experiments.cluster.batch import Batch
    from experiments.cluster.queue import Jobs
    from experiments.tracking import Tracker, Untracked

LOCK = "collector.lock"
LOOK_S = 1.0
"""Between two looks at the records."""
ASK_FIRST_S, ASK_LAST_S, SLOWER = 2.0, 30.0, 1.5
"""Between two questions to Slurm, whose controller serves everybody: ever longer while there is no news."""
LAG_S = 5.0
"""A shared disk may show a job's last record later than Slurm shows its end."""


@dataclass
class Collector:
    """One at a time on a batch: only its holder writes to the tracking store, and for jobs that are over."""

    batch: Batch
    jobs: Jobs
    tracker: Tracker | Untracked
    untracked: list[Path] = field(default_factory=list)
    """Records that the tracking store did not take."""
    _filed: set[Path] = field(default_factory=set)
    _told: set[str] = field(default_factory=set)
    _ended: dict[str, float] = field(default_factory=dict)
    """When a job was first seen to be over."""
    _over: set[str] = field(default_factory=set)
    """Cells of jobs that are over, which have been settled."""

    def follow(self) -> None:
        """Until nothing is missing. Raises Interrupted, StorageError."""
        pause, asked, known = ASK_FIRST_S, float("-inf"), None
        while missing := self.look():
            if time.monotonic() - asked >= pause:
                self.ask()
                news = (missing, self.jobs)
                pause = min(pause * SLOWER, ASK_LAST_S) if news == known else ASK_FIRST_S
                asked, known = time.monotonic(), news
            self.settle(missing)
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
        if name not in self._told:
            print(f"{name}: {outcome(last[1])}", file=sys.stderr, flush=True)
            for attempt, _ in self.batch.tries(name):  # what an earlier call measured is in the store under that
                self.file(attempt)
            self._told.add(name)
        return True

    def file(self, attempt: Path) -> None:
        if attempt not in self._filed and not self.tracker.log(attempt):
            self.untracked.append(attempt / FILE)
        self._filed.add(attempt)

    def ask(self) -> None:
        self.jobs = queue.refreshed(self.batch.directory, self.jobs)
        queue.write(self.batch.directory, self.jobs)

    def settle(self, missing: list[str]) -> None:
        """What no job will bring any more."""
        for job in self.jobs.jobs:
            names = [name for name in missing if name in job.cells]
            if job.over and names:
                ended = self._ended.setdefault(job.id, time.monotonic())
                if time.monotonic() - ended >= LAG_S or fate.is_told(self.batch, job, names):
                    fate.settle(self.batch, job, names)
                    self._over |= {*names}
        for name in missing:
            if not any(name in job.cells for job in self.jobs.jobs):
                if self.batch.last(name) is None:
                    fate.refuse(self.batch, self.batch.cell(name), "unfinished", "its job was never submitted")
                self._over.add(name)


def lock(batch: Batch) -> FileLock:
    """Acquired; the caller releases it."""
    path = batch.directory / LOCK
    return measurement_lock(str(path), lambda _: print("another collector is at work here; waiting", file=sys.stderr))


def outcome(record: dict[str, Any]) -> str:
    """In a few words."""
    failure = record["failure"]
    if failure:
        return f"{failure['class']} in {failure['phase']}: {failure['message']}"
    return f"{record['status']} {record['verdict'] or ''}: {record['reason']}"
