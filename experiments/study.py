"""A study from composed configurations to its summary: prepare, then run the cells one after the other, conclude.

The surprise: cells hand nothing to each other in memory. A candidate reads its baseline from the files of the cell that
came first, whether that ran a minute ago or was taken over from an earlier run.
"""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from experiments import cell, preview, search, summary
from experiments.audit import report
from experiments.engines.registry import engine_of
from experiments.errors import ConfigError, Interrupted, StorageError
from experiments.interrupts import ignore
from experiments.machine import Cores, available_cores, split_cores
from experiments.measurement import Baseline
from experiments.plan import Invocation
from experiments.preparation import change_between, prepare
from experiments.progress import Stages
from experiments.record import FILE, SCHEMA, SEARCH, attempts, new_attempt, now, read, write_json
from experiments.tracking import open_tracker
from gates.evidence import CellEvidence
from gates.validity import Ruler

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from omegaconf import DictConfig

    from experiments.preparation import Plan, Prepared
    from experiments.search import Search
    from experiments.spec import CellSpec, MachineSpec
    from experiments.tracking import Tracker, Untracked


@dataclass(frozen=True, kw_only=True)
class Course:
    """A plan on its way: what it takes over and what it measures itself."""

    plan: Plan
    taken_over: Mapping[str, Path]
    """By cell; see `earlier`."""
    invocation: Invocation
    tracker: Tracker | Untracked


@dataclass(frozen=True)
class Outcome:
    attempts: list[Path] = field(default_factory=list)
    untracked: list[Path] = field(default_factory=list)
    """Those that the tracking store did not take."""


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
        courses = [chart(plan, order) for plan in plans]
    except ConfigError as error:
        return summary.refuse(error)
    outcome, stopped = Outcome(), None
    try:
        for course in courses:
            follow(course, outcome, order)
    except Interrupted as interrupt:
        stopped = f"interrupted by {interrupt}: server stopped, record written"
    except StorageError as error:
        stopped = f"stopped, for nothing can be recorded: {error}"
    ignore()
    records = [(read(attempt), attempt / FILE) for attempt in outcome.attempts]
    found = order.result() if order else None
    return summary.conclude(records, untracked=outcome.untracked, stopped=stopped, search=found)


def chart(plan: Plan, order: Search | None = None) -> Course:
    """Nothing is started yet. Raises ConfigError for a tracking store that takes no writing."""
    taken_over = earlier(plan) if plan.study.resume else {}
    most = order.most if order else len(plan.cells) - len(taken_over)
    invocation = Invocation(id=uuid.uuid4().hex[:12], cells=most, started_utc=now())
    return Course(plan=plan, taken_over=taken_over, invocation=invocation, tracker=open_tracker(plan.study, invocation))


def earlier(plan: Plan) -> dict[str, Path]:
    """Valid attempts of earlier calls, by cell: those that were judged against the baseline they would have now."""
    kept: dict[str, Path] = {}
    baseline: str | None = None
    for item in plan.cells:
        attempt = valid_attempt(plan, item)
        record = read(attempt) if attempt else {}
        if attempt and record["baseline"] == baseline:
            kept[item.cell.name] = attempt
            if baseline is None and is_trusted(record):
                baseline = item.cell.name
        elif baseline is None and not item.cell.spec.calibrates:
            break  # this cell is measured anew, and may become the baseline of all behind it
    return kept


def follow(course: Course, outcome: Outcome, order: Search | None = None) -> None:
    """The first cell that can be trusted is the baseline of those behind it. Raises Interrupted, StorageError."""
    baseline: tuple[CellSpec, Path] | None = None
    with Stages(order.most if order else len(course.plan.cells)) as stages, course.tracker:
        for item in order or course.plan.cells:
            stages.cell(item.cell.name)
            if attempt := course.taken_over.get(item.cell.name):
                outcome.attempts.append(attempt)
                stages.say(f"taken over from {attempt}")
            else:
                attempt = new_attempt(course.plan.directory / item.cell.name)
                measure(course, begin(course, item, attempt, baseline), stages, outcome)
            record = read(attempt)
            if order:
                order.tell(record)
            if baseline is None and is_trusted(record):
                baseline = item.cell.spec, attempt
        if order:
            write_search(course, order, len({*outcome.attempts} - {*course.taken_over.values()}))


def write_search(course: Course, order: Search, measured: int) -> None:
    """How many cells were to be measured after all is known when a budget has ended the search. Raises StorageError."""
    call = course.invocation
    content = {"schema": SCHEMA, "invocation": asdict(call) | {"cells": measured}, **order.result()}
    try:
        write_json(course.plan.directory / SEARCH.format(call.id), content)
    except OSError as error:
        raise StorageError(f"no record of what the search found: {error}") from error


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


def begin(course: Course, item: Prepared, directory: Path, baseline: tuple[CellSpec, Path] | None) -> cell.Attempt:
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
        baseline=load_baseline(*baseline, item.cell.spec) if baseline else None,
        golden=item.golden,
        findings=item.findings,
    )


def pinned(machine: MachineSpec, spec: CellSpec) -> Cores:
    """Whose cores are whose; the driver itself is on the client's from now on."""
    if not machine.pin_cores or not engine_of(spec).started:
        return Cores()
    cores = split_cores(available_cores(), spec.engine.num_threads)
    os.sched_setaffinity(0, cores.client or available_cores())
    return cores


def load_baseline(spec: CellSpec, attempt: Path, candidate: CellSpec) -> Baseline:
    record = read(attempt)
    return Baseline(
        name=record["name"],
        spec=spec,
        change=change_between(spec, candidate),
        evidence=CellEvidence.from_json(json.loads((attempt / "gate.json").read_text())),
        ruler=Ruler(**record["ruler"]),
    )


def valid_attempt(plan: Plan, item: Prepared) -> Path | None:
    """The newest attempt with the same identity and a valid record."""
    for attempt in reversed(attempts(plan.directory / item.cell.name)):
        if (attempt / FILE).exists():
            record = read(attempt)
            if record["identity"] == item.identity and record["status"] == "valid":
                return attempt
    return None
