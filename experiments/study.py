"""A study from composed configurations to its summary: prepare, then run the cells one after the other, conclude.

The surprise: cells hand nothing to each other in memory. A candidate reads its baseline from the files of the cell that
came first, whether that ran a minute ago, was taken over from an earlier run, or is another driver's (sharing.py).
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from experiments import cell, preview, search, summary
from experiments.audit import report
from experiments.engines.registry import engine_of
from experiments.errors import ConfigError, Interrupted, StorageError
from experiments.interrupts import ignore
from experiments.machine import Cores, available_cores, split_cores
from experiments.measurement import Baseline
from experiments.preparation import change_between, prepare
from experiments.progress import Stages
from experiments.record import FILE, SCHEMA, SEARCH, new_attempt, read, write_json
from experiments.sharing import LOCK, Round, at_work, joined, turn
from experiments.tracking import open_tracker
from gates.evidence import CellEvidence
from gates.validity import Ruler

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from omegaconf import DictConfig

    from experiments.plan import Invocation
    from experiments.preparation import Plan, Prepared
    from experiments.search import Search
    from experiments.sharing import Takeover
    from experiments.spec import CellSpec, MachineSpec
    from experiments.tracking import Tracker, Untracked


@dataclass(frozen=True, kw_only=True)
class Course:
    """A plan on its way."""

    plan: Plan
    round: Round
    tracker: Tracker | Untracked

    @property
    def invocation(self) -> Invocation:
        return self.round.invocation


@dataclass(frozen=True)
class Outcome:
    attempts: list[Path] = field(default_factory=list)
    untracked: list[Path] = field(default_factory=list)
    """Those that the tracking store did not take."""


@dataclass(frozen=True)
class Measured:
    """A cell and the attempt that holds its record."""

    item: Prepared
    attempt: Path

    @property
    def record(self) -> dict[str, Any]:
        return read(self.attempt)


def main(configs: Sequence[DictConfig]) -> int:
    """Run what Hydra composed, one plan per study; returns the exit code."""
    try:
        plans = list(prepare(configs))
        if any(plan.study.dry_run for plan in plans):
            return preview.dry_run(plans)
        if any(plan.study.preflight for plan in plans):
            return preview.preflight(plans)
        report.announce(plans)
        order = search.ordered(configs, plans)
        with ExitStack() as rounds:
            return run([chart(plan, rounds, order) for plan in plans], order)
    except ConfigError as error:
        return summary.refuse(error)


def chart(plan: Plan, rounds: ExitStack, order: Search | None = None) -> Course:
    """Nothing is started yet. Raises ConfigError for a tracking store that takes no writing."""

    def most(takeover: Takeover) -> int:
        return order.most if order else len(plan.cells) - earlier(plan, takeover)

    round_ = rounds.enter_context(joined(plan.directory, plan.identity, plan.study, most))
    return Course(plan=plan, round=round_, tracker=open_tracker(plan.study, round_.invocation))


def run(courses: Sequence[Course], order: Search | None) -> int:
    """Returns the exit code."""
    outcome, stopped = Outcome(), None
    try:
        for course in courses:
            follow(course, outcome, order)
    except Interrupted as interrupt:
        stopped = f"interrupted by {interrupt}: server stopped, record written"
    except StorageError as error:
        stopped = f"stopped, for nothing can be recorded: {error}"
    ignore()
    cells = [course.plan.directory / item.cell.name for course in courses for item in course.plan.cells]
    places = {directory: place for place, directory in enumerate(cells)}
    done = outcome.attempts if order else sorted(outcome.attempts, key=lambda attempt: places[attempt.parent])
    found = order.result() if order else None
    records = [(read(attempt), attempt / FILE) for attempt in done]
    return summary.conclude(records, untracked=outcome.untracked, stopped=stopped, search=found)


def earlier(plan: Plan, takeover: Takeover) -> int:
    """How many cells need not be measured: those that were judged against the baseline they would have now."""
    known = 0
    baseline: str | None = None
    for item in plan.cells:
        attempt = takeover.outcome(plan.directory / item.cell.name, item.identity, baseline)
        if attempt:
            known += 1
            if baseline is None and is_trusted(read(attempt)):
                baseline = item.identity
        elif baseline is None and not item.cell.spec.calibrates:
            break  # this cell is measured anew, and may become the baseline of all behind it
    return known


def follow(course: Course, outcome: Outcome, order: Search | None = None) -> None:
    """Raises Interrupted, StorageError."""
    with Stages(order.most if order else len(course.plan.cells)) as stages, course.tracker:
        if order:
            chosen(course, order, stages, outcome)
        else:
            sweep(course, stages, outcome)
        course.tracker.complete(outcome.attempts)


def sweep(course: Course, stages: Stages, outcome: Outcome) -> None:
    """The first cell that can be trusted is the baseline of those behind it, so whoever measures it is waited for.

    Of the others each driver takes those that nobody has, and waits only when there are none left.
    """
    baseline: Measured | None = None
    left: list[tuple[Prepared, Measured | None]] = []
    for item in course.plan.cells:
        decides = baseline is None and not item.cell.spec.calibrates
        attempt = obtain(course, item, baseline, stages, outcome, wait=decides)
        if attempt is None:
            left.append((item, baseline))
        elif baseline is None and is_trusted(read(attempt)):
            baseline = Measured(item, attempt)
    while left:
        first, *others = left
        obtain(course, *first, stages, outcome)
        left = [one for one in others if not obtain(course, *one, stages, outcome, wait=False)]


def chosen(course: Course, order: Search, stages: Stages, outcome: Outcome) -> None:
    """As a sweep, one cell after the other, for each choice needs what came of those before it."""
    baseline: Measured | None = None
    for item in order:
        attempt = obtain(course, item, baseline, stages, outcome)
        assert attempt is not None, "waited for"
        record = read(attempt)
        order.tell(record)
        if baseline is None and is_trusted(record):
            baseline = Measured(item, attempt)
    ours = [attempt for attempt in outcome.attempts if read(attempt)["invocation"]["id"] == course.invocation.id]
    write_search(course, order, len(ours))


def write_search(course: Course, order: Search, measured: int) -> None:
    """How many cells were to be measured after all is known when a budget has ended the search. Raises StorageError."""
    call = course.invocation
    content = {"schema": SCHEMA, "invocation": asdict(call) | {"cells": measured}, **order.result()}
    try:
        write_json(course.plan.directory / SEARCH.format(call.id), content)
    except OSError as error:
        raise StorageError(f"no record of what the search found: {error}") from error


def obtain(
    course: Course, item: Prepared, baseline: Measured | None, stages: Stages, outcome: Outcome, *, wait: bool = True
) -> Path | None:
    """The attempt with the cell's record, taken over or measured here; None: another driver is at it, and no `wait`.

    Raises Interrupted, StorageError.
    """
    directory = course.plan.directory / item.cell.name
    against = baseline.item.identity if baseline else None

    def known() -> Path | None:
        return course.round.takeover.outcome(directory, item.identity, against)

    def waiting() -> None:
        stages.cell(item.cell.name)
        stages.say(f"waits for {at_work(directory)}")

    found = known()
    if not found:
        with turn(directory / LOCK, waiting if wait else None) as ours:
            found = known()
            if not found and not ours:
                return None
            if not found:
                stages.cell(item.cell.name)
                attempt = new_attempt(directory)
                measure(course, begin(course, item, attempt, baseline), stages, outcome)
                return attempt
    stages.cell(item.cell.name)
    stages.say(f"taken over from {found}")
    outcome.attempts.append(found)
    return found


def measure(course: Course, attempt: cell.Attempt, stages: Stages, outcome: Outcome) -> None:
    try:
        cell.run(attempt, stages)
    finally:  # an interrupted cell has a record as well
        if (attempt.directory / FILE).exists():
            outcome.attempts.append(attempt.directory)
            if not course.tracker.log(attempt.directory):
                outcome.untracked.append(attempt.directory / FILE)


def is_trusted(record: dict[str, Any]) -> bool:
    """Valid and not rejected."""
    return record["verdict"] not in (None, "reject")


def begin(course: Course, item: Prepared, directory: Path, baseline: Measured | None) -> cell.Attempt:
    study = course.plan.study
    return cell.Attempt(
        cell=item.cell,
        study=study.study,
        invocation=course.invocation,
        identity=item.identity,
        directory=directory,
        data=item.data,
        cores=pinned(study.machine, item.cell.spec),
        lock=study.machine.lock,
        baseline=load_baseline(baseline, item.cell.spec) if baseline else None,
        golden=item.golden,
        findings=item.findings,
    )


def pinned(machine: MachineSpec, spec: CellSpec) -> Cores:
    """Whose cores are whose; the driver itself is on the client's from now on."""
    if not machine.pin_cores or not engine_of(spec).started:
        return Cores()
    cores = split_cores(available_cores(), spec.engine.cores)
    os.sched_setaffinity(0, cores.client or available_cores())
    return cores


def load_baseline(baseline: Measured, candidate: CellSpec) -> Baseline:
    record = baseline.record
    return Baseline(
        name=record["name"],
        spec=baseline.item.cell.spec,
        identity=record["identity"],
        change=change_between(baseline.item.cell.spec, candidate),
        evidence=CellEvidence.from_json(json.loads((baseline.attempt / "gate.json").read_text())),
        ruler=Ruler(**record["ruler"]),
    )
