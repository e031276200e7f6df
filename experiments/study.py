"""A study from composed configurations to its summary: prepare, then run the cells one after the other, conclude.

The surprise: cells hand nothing to each other in memory. A candidate reads its baseline from the files of the cell that
came first, whether that ran a minute ago or was taken over from an earlier run.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from experiments import cell, preview, summary
from experiments.errors import ConfigError, Interrupted
from experiments.interrupts import interruptible
from experiments.machine import Cores, available_cores, split_cores
from experiments.measurement import Baseline
from experiments.preparation import change_between, prepare
from experiments.progress import Stages
from experiments.record import FILE, attempts, new_attempt, read
from experiments.tracking import open_tracker
from gates.evidence import CellEvidence
from gates.validity import Ruler

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from omegaconf import DictConfig

    from experiments.preparation import Plan, Prepared
    from experiments.spec import CellSpec
    from experiments.tracking import Tracker, Untracked


def main(configs: Sequence[DictConfig]) -> int:
    """Run what Hydra composed, one plan per study; returns the exit code."""
    try:
        plans = list(prepare(configs))
        if any(plan.study.dry_run for plan in plans):
            return preview.dry_run(plans)
        if any(plan.study.preflight for plan in plans):
            return preview.preflight(plans)
        trackers = [open_tracker(plan.study, len(plan.cells)) for plan in plans]
    except ConfigError as error:
        return summary.refuse(error)
    done: list[Path] = []
    with interruptible():
        try:
            for plan, tracker in zip(plans, trackers, strict=True):
                run_plan(plan, tracker, done)
        except Interrupted as interrupt:
            print(f"interrupted by {interrupt}: server stopped, record written", file=sys.stderr)
    return summary.conclude([(read(attempt), attempt / FILE) for attempt in done])


def run_plan(plan: Plan, tracker: Tracker | Untracked, done: list[Path]) -> None:
    """Append every cell's attempt to `done`. The first valid cell is the baseline of those behind it."""
    baseline: tuple[CellSpec, Path] | None = None
    with Stages(len(plan.cells)) as stages, tracker:
        for item in plan.cells:
            stages.cell(item.cell.name)
            attempt = valid_attempt(plan, item) if plan.study.resume else None
            if attempt is None:
                attempt = new_attempt(plan.directory / item.cell.name)
                done.append(attempt)
                run_cell(begin(plan, item, attempt, baseline), stages, tracker)
            else:
                done.append(attempt)
                stages.say(f"taken over from {attempt}")
            if baseline is None and read(attempt)["status"] == "valid":
                baseline = item.cell.spec, attempt


def run_cell(attempt: cell.Attempt, stages: Stages, tracker: Tracker | Untracked) -> None:
    try:
        cell.run(attempt, stages)
    finally:  # an interrupted cell has a record as well
        tracker.log(read(attempt.directory), attempt.directory)


def begin(plan: Plan, item: Prepared, directory: Path, baseline: tuple[CellSpec, Path] | None) -> cell.Attempt:
    cores = Cores()
    if plan.study.machine.pin_cores:
        cores = split_cores(available_cores(), item.cell.spec.engine.num_threads)
        os.sched_setaffinity(0, cores.client or available_cores())
    return cell.Attempt(
        cell=item.cell,
        study=plan.study.study,
        identity=item.identity,
        directory=directory,
        data=item.data,
        cores=cores,
        lock=plan.study.machine.lock,
        baseline=load_baseline(*baseline, item.cell.spec) if baseline else None,
        golden=item.golden,
    )


def load_baseline(spec: CellSpec, attempt: Path, candidate: CellSpec) -> Baseline:
    record = read(attempt)
    return Baseline(
        name=record["name"],
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
