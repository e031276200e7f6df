"""`mode=ab` and `mode=campaign` from composed configurations to the summary.

The surprise: an A/B takes the same way as a campaign's steps, cells first and then a decision, so that everything that
holds for a campaign (taking over, records, tracking) holds for it.
"""

from __future__ import annotations

import sys
import uuid
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from experiments import plan, preview, summary
from experiments.audit import report
from experiments.checks import checked
from experiments.comparison import campaign
from experiments.comparison.ab import Bench
from experiments.comparison.campaign import BASE, Campaign, Step
from experiments.comparison.patch import difference
from experiments.comparison.runner import Runner, prepared, question
from experiments.composition import convert
from experiments.errors import ConfigError, Interrupted, StorageError
from experiments.interrupts import ignore
from experiments.plan import Invocation
from experiments.preparation import Plan, check_programs, check_study
from experiments.progress import Stages
from experiments.record import DECISION, FILE, now, read
from experiments.sharing import SWEEPS, Round, Takeover, ended, turn
from experiments.study import Course, Outcome, is_trusted
from experiments.tracking import open_tracker

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from omegaconf import DictConfig

    from experiments.comparison.spec import ABSpec, Declared, Modes
    from experiments.composition import Composed
    from experiments.preparation import Prepared
    from experiments.spec import CellSpec


GRAPH_MEMORY = "graph-memory-mib"
"""A flag of our server, by which it bounds what it records."""


@dataclass(frozen=True, kw_only=True)
class Venture:
    """What is to be compared, checked: the first cell is the baseline or base, those behind it are held against it."""

    plan: Plan
    modes: Modes
    composed: tuple[CellSpec, ...]


def main(configs: Sequence[DictConfig]) -> int:
    """Run what Hydra composed; returns the exit code."""
    try:
        venture = prepare([*map(convert, configs)])
        if venture.plan.study.dry_run:
            return preview.dry_run([venture.plan])
        if venture.plan.study.preflight:
            return preview.preflight([venture.plan])
        report.announce([venture.plan])
        with turn(lock_file(venture), partial(wait, venture)):
            return run(venture, chart(venture))
    except StorageError as error:
        return summary.refuse(ConfigError("output_dir", str(error)))
    except ConfigError as error:
        return summary.refuse(error)


def lock_file(venture: Venture) -> Path:
    return venture.plan.directory / SWEEPS / f"{identity(venture)}.lock"


def wait(venture: Venture) -> None:
    """Each step rests on the one before, so there is nothing that a second driver could do meanwhile."""
    plan, mode = venture.plan, venture.modes.mode
    print(f"another driver is at this {mode} in {plan.directory}; waiting for its end", file=sys.stderr, flush=True)


def chart(venture: Venture) -> Course:
    """Nothing is started yet. Raises ConfigError for a tracking store that takes no writing."""
    plan, invocation = venture.plan, call(venture)
    takeover = Takeover(study=plan.study, ended=ended(plan.directory))
    tracker = open_tracker(plan.study, invocation)
    return Course(plan=plan, round=Round(takeover=takeover, invocation=invocation), tracker=tracker)


def run(venture: Venture, course: Course) -> int:
    """Returns the exit code."""
    outcome, decided, stopped = Outcome(), [], None
    try:
        with Stages(2 * len(venture.plan.cells) - 1) as stages, course.tracker:
            bench = Bench(
                plan=venture.plan,
                settings=venture.modes.ab,
                invocation=course.invocation,
                stages=stages,
                floor_cell=venture.plan.cells[0],
            )
            runner = Runner(course=course, bench=bench, outcome=outcome)
            decided = runner.decided
            follow(venture, runner)
    except Interrupted as interrupt:
        stopped = f"interrupted by {interrupt}: servers stopped, record written"
    except StorageError as error:
        stopped = f"stopped, for nothing can be recorded: {error}"
    ignore()
    return summary.conclude(
        [(read(attempt), attempt / FILE) for attempt in outcome.attempts],
        decided=[(read(attempt, DECISION), attempt / DECISION) for attempt in decided],
        campaign=campaign.summed(venture.plan.directory) if venture.modes.mode == "campaign" else None,
        untracked=outcome.untracked,
        stopped=stopped,
    )


def identity(venture: Venture) -> str:
    return campaign.identity(venture.plan.cells, venture.modes.ab)


def call(venture: Venture) -> Invocation:
    """A new one, or that of the campaign which goes on. How many cells it will take, a campaign does not know yet."""
    study, modes = venture.plan.study, venture.modes
    goes_on = study.resume and study.retry != "all" and modes.mode == "campaign"
    known = campaign.begun(venture.plan.directory, identity(venture)) if goes_on else None
    cells = 2 if modes.mode == "ab" else 1
    return known or Invocation(id=uuid.uuid4().hex[:12], cells=cells, started_utc=now())


def prepare(composed: Sequence[Composed]) -> Venture:
    """Raises ConfigError."""
    first = composed[0]
    for one in composed:
        check_programs(one.cell, first.study)
    check_study(first.study)
    modes = first.modes
    if first.study.launcher.name != "none":
        problem = f"mode={modes.mode} runs on one machine: allowed is launcher=none, in a job of yours (docs/slurm.md)"
        raise ConfigError("launcher", problem)
    expected = 2 if modes.mode == "ab" else 1 + len(modes.campaign.changes)
    if len(composed) != expected:
        raise ConfigError("mode", f"{modes.mode} is one job, not {len(composed) // expected}; -m is for sweeps")
    if any(one.cell.calibrates for one in composed):
        raise ConfigError("calibration", f"makes files and measures nothing that mode={modes.mode} could compare")
    specs = tuple(one.cell for one in composed)
    check_settings(modes, first.cell)
    check_start(modes.ab, specs)
    cells = arms(first, specs) if modes.mode == "ab" else changes(first, specs)
    return Venture(plan=Plan(first.study, cells), modes=modes, composed=specs)


def check_settings(modes: Modes, cell: CellSpec) -> None:
    settings = modes.ab
    smallest: dict[str, tuple[float, float]] = {
        "ab.prompts": (settings.prompts, 1),
        "ab.floor_runs": (settings.floor_runs, 3),
        "ab.floor_blocks": (settings.floor_blocks, 1),
        "ab.launch_blocks": (settings.launch_blocks, 0),
    }
    declared: dict[str, Declared] = {f"campaign.changes ({entry.name})": entry for entry in modes.campaign.changes}
    for name, said in ({"ab": settings} | declared).items():
        smallest |= {f"{name}.accept_bound": (said.accept_bound, 0), f"{name}.equal_margin": (said.equal_margin, 0)}
    for key, (value, least) in smallest.items():
        if value < least:
            raise ConfigError(key, f"{value} is too small; allowed: {least} and more")
    for key, value in {"ab.budget_s": settings.budget_s, "ab.floor_days": settings.floor_days}.items():
        if value <= 0:
            raise ConfigError(key, f"{value:g} is no limit; allowed: above 0")
    if settings.prompts > cell.workload.num_prompts:
        raise ConfigError("ab.prompts", f"{settings.prompts} to a block, but workload.num_prompts has fewer")
    names = [entry.name for entry in modes.campaign.changes]
    if len({BASE, *names}) <= len(names):
        raise ConfigError("campaign.changes", f"names must differ, also from {BASE!r}: {', '.join(names)}")
    if modes.mode == "campaign" and not names:
        raise ConfigError("campaign.changes", "none are given")


def check_start(settings: ABSpec, cells: Sequence[CellSpec]) -> None:
    if settings.start != "at_once":
        return
    if settings.servers != "together":
        problem = (
            f"at_once is for servers that are alive together, and ab.servers={settings.servers}; allowed: together"
        )
        raise ConfigError("ab.start", problem)
    for engine in (cell.engine for cell in cells):
        given = {*engine.flags, *(part.partition("=")[0].removeprefix("--") for part in engine.extra_args)}
        if GRAPH_MEMORY in given:
            problem = (
                f"at_once beside {GRAPH_MEMORY} (engine.flags, engine.extra_args): each server counts what its card "
                f"has left, so what one records would count as the other's; allowed: in_turn, or no {GRAPH_MEMORY}"
            )
            raise ConfigError("ab.start", problem)


def arms(first: Composed, specs: Sequence[CellSpec]) -> tuple[Prepared, ...]:
    """Named as the cells of a sweep would be."""
    declared = first.modes.ab
    done = [checked(spec) for spec in specs]
    base = done[0]
    if base.engine.url and base.engine.url == done[1].engine.url:
        raise ConfigError("engine.url", f"both arms are {base.engine.url}; each needs a server of its own")
    names = [cell.name for cell in plan.expand(done)]
    pair = [
        prepared(name, spec, first.study, base=base, declared=said)
        for name, spec, said in zip(names, specs, (None, declared), strict=True)
    ]
    question(names[1], "ab", declared, declared.candidate, *pair)
    return tuple(pair)


def changes(first: Composed, specs: Sequence[CellSpec]) -> tuple[Prepared, ...]:
    """The base, then each change by itself on the base: all of it is checked before anything starts."""
    base = prepared(BASE, specs[0], first.study, base=checked(specs[0]), declared=None)
    cells = [base]
    for entry, spec in zip(first.modes.campaign.changes, specs[1:], strict=True):
        if not difference(specs[0], spec):
            raise ConfigError(f"campaign.changes ({entry.name})", "its overrides change nothing")
        item = prepared(entry.name, spec, first.study, base=base.cell.spec, declared=entry)
        question(entry.name, "change", entry, entry.overrides, base, item)
        cells.append(item)
    return tuple(cells)


def follow(venture: Venture, runner: Runner) -> None:
    """Raises Interrupted, StorageError."""
    if venture.modes.mode == "ab":
        compare(venture, runner)
        return
    base, *changed = venture.composed
    pairs = zip(venture.modes.campaign.changes, changed, strict=True)
    Campaign(
        identity=identity(venture),
        base=base,
        steps=tuple(Step(entry, difference(base, spec)) for entry, spec in pairs),
        study=venture.plan.study,
        leave_one_out=venture.modes.campaign.leave_one_out,
        runner=runner,
    ).run()


def compare(venture: Venture, runner: Runner) -> None:
    baseline, candidate = venture.plan.cells
    declared = venture.modes.ab
    ours = runner.cell(baseline)
    if not is_trusted(ours.record):
        return  # its record says why, and there is nothing to compare with
    theirs = runner.cell(candidate, ours)
    asked = question(candidate.cell.name, "ab", declared, declared.candidate, baseline, candidate)
    runner.decision(asked, ours, theirs)
