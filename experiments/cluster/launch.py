"""`launcher=slurm|local`: a sweep that this program composes and checks, and jobs measure.

The surprise: what ends here is the watching and never the sweep. A driver that is stopped leaves its jobs in the queue
and says how to go on without it, and how to end them.
"""

from __future__ import annotations

import sys
import uuid
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from experiments import preview, search, summary
from experiments.audit import report
from experiments.cluster import collector, queue
from experiments.cluster.batch import Batch
from experiments.cluster.collector import Collector, outcome
from experiments.cluster.submission import groups, submit
from experiments.errors import ConfigError, Interrupted, StorageError
from experiments.interrupts import ignore
from experiments.plan import Invocation
from experiments.preparation import prepare
from experiments.record import FILE, now
from experiments.tracking import open_tracker
from gates.verdict import OK

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from omegaconf import DictConfig

    from experiments.preparation import Plan


def main(configs: Sequence[DictConfig]) -> int:
    """Submit what Hydra composed, one batch per study, and collect it; returns the exit code."""
    with ExitStack() as held:
        try:
            plans = list(prepare(configs))
            if any(plan.study.dry_run for plan in plans):
                outline(plans)
                return preview.dry_run(plans)
            if any(plan.study.preflight for plan in plans):
                return preview.preflight(plans)
            report.announce(plans)
            check(configs, plans)
            collectors = begin(plans, held)
        except ConfigError as error:
            return summary.refuse(error)
        if not all(plan.study.launcher.wait for plan in plans):
            return left(collectors)
        return finish(collectors)


def outline(plans: Sequence[Plan]) -> None:
    """Print which job would get which cells."""
    for plan in plans:
        first, *others = groups(tuple(item.cell.name for item in plan.cells), plan.study.launcher)
        print(f"# {plan.study.study}: job 1: {', '.join(first)}")
        for number, names in enumerate(others, 2):
            print(f"# {plan.study.study}: job {number}, after job 1: {', '.join(names)}")


def check(configs: Sequence[DictConfig], plans: Sequence[Plan]) -> None:
    """Raises ConfigError."""
    if search.ordered(configs, plans):
        raise ConfigError("launcher", "a search asks after each cell; allowed is launcher=none")
    if len({plan.study.launcher.name for plan in plans}) > 1:
        raise ConfigError("launcher", "several in one call; allowed: one for all cells")


def begin(plans: Sequence[Plan], held: ExitStack) -> list[Collector]:
    """All of them, or none. Raises ConfigError."""
    collectors: list[Collector] = []
    try:
        for plan in plans:
            collectors.append(begun(plan, held))  # noqa: PERF401 - what was begun has to be ended where one fails
    except ConfigError:
        for one in collectors:
            queue.cancel(one.jobs)
        raise
    return collectors


def begun(plan: Plan, held: ExitStack) -> Collector:
    """Submitted; nobody else collects while this process does. Raises ConfigError."""
    invocation = Invocation(id=uuid.uuid4().hex[:12], cells=len(plan.cells), started_utc=now())
    batch = Batch.of(plan, invocation)
    tracker = open_tracker(plan.study, invocation)
    jobs = submit(batch)
    held.enter_context(collector.lock(batch))
    print(f"{len(jobs.jobs)} jobs for {len(plan.cells)} cells: {batch.directory}", file=sys.stderr)
    return Collector(batch, jobs, tracker)


def left(collectors: Sequence[Collector]) -> int:
    """The jobs are submitted, and that is all."""
    jobs = {job.id: [*job.cells] for one in collectors for job in one.jobs.jobs}
    print(how_to_go_on(collectors), file=sys.stderr)
    summary.print_line({"cells": [], "decisions": [], "submitted": jobs}, OK)
    return OK


def finish(collectors: Sequence[Collector]) -> int:
    """Follow the batches to their end, and say what came of them; returns the exit code."""
    stopped = None
    try:
        for one in collectors:
            with one.tracker:
                one.follow()
                one.tracker.expect(sum(any(one.batch.tries(name)) for name in one.batch.names))
    except Interrupted as interrupt:
        stopped = f"interrupted by {interrupt}: {how_to_go_on(collectors)}"
    except StorageError as error:
        stopped = f"stopped, for nothing can be recorded: {error}"
    ignore()
    return concluded(collectors, stopped)


def how_to_go_on(collectors: Sequence[Collector]) -> str:
    outputs = dict.fromkeys(one.batch.study.output_dir for one in collectors)
    jobs = [job.id for one in collectors for job in one.jobs.jobs if not job.over]
    cancel = "scancel" if collectors[0].jobs.cluster == "slurm" else "kill"
    then = "; ".join(f"`python -m experiments.collect {path}`" for path in outputs)
    return f"the jobs go on, and {then} collects them; `{cancel} {' '.join(jobs)}` ends them"


def concluded(collectors: Sequence[Collector], stopped: str | None) -> int:
    """The table and the line of what there is; returns the exit code."""
    batches = [one.batch for one in collectors]
    last = [found for batch in batches for name in batch.names if (found := batch.last(name))]
    return summary.conclude(
        [(record, attempt / FILE) for attempt, record in last],
        untracked=[path for one in collectors for path in one.untracked],
        stopped=stopped,
        cluster=[history(one, name) for one in collectors for name in one.batch.names],
    )


def history(one: Collector, name: str) -> dict[str, Any]:
    """Of a cell: every attempt, and the state of its job where there is none."""
    job = next((job for job in one.jobs.jobs if name in job.cells), None)
    tries = [*one.batch.tries(name)] or [found for found in [one.batch.last(name)] if found]
    return {
        "name": name,
        "state": job.told() if job else "no job",
        "attempts": [attempted(job, attempt, record) for attempt, record in tries],
    }


def attempted(job: queue.Job | None, attempt: Path, record: dict[str, Any]) -> dict[str, Any]:
    """A record that the collector wrote for a job is that job's."""
    ran = record["environment"].get("job") or {}
    return {
        "attempt": attempt.name,
        "job": ran.get("id") or (job.id if job else None),
        "restarts": ran.get("restarts", 0),
        "node": record["environment"]["host"],
        "outcome": (record["failure"] or {}).get("class") or record["verdict"] or record["rule"],
        "reason": outcome(record),
    }
