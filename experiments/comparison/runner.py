"""Cells and decisions as they are needed, each taken over from the files where they already hold it.

The surprise: nothing else remembers how far a campaign came. It is walked from the start each time, and every cell and
every decision whose identity has a valid record costs a look at the disk, so a campaign that was killed goes on.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from experiments import study
from experiments.checks import checked
from experiments.comparison import ab, decision
from experiments.drawn import check_memory
from experiments.plan import Cell, flat
from experiments.preparation import change_between, with_data
from experiments.record import DECISION, DECISIONS
from experiments.study import Measured
from gates.evidence import Missing

if TYPE_CHECKING:
    from pathlib import Path

    from experiments.comparison.ab import Bench
    from experiments.comparison.decision import Kind, Question
    from experiments.comparison.spec import Declared
    from experiments.preparation import Prepared
    from experiments.spec import CellSpec, StudySpec
    from experiments.study import Course, Outcome


@dataclass(frozen=True, kw_only=True)
class Runner:
    course: Course
    bench: Bench
    outcome: Outcome
    decided: list[Path] = field(default_factory=list)

    def cell(self, item: Prepared, baseline: Measured | None = None) -> Measured:
        """Raises Interrupted, StorageError."""
        attempt = study.obtain(self.course, item, baseline, self.bench.stages, self.outcome)
        assert attempt is not None, "waited for"
        return Measured(item, attempt)

    def decision(self, question: Question, baseline: Measured | None, candidate: Measured | None) -> Path:
        """Raises Interrupted, StorageError."""
        stages = self.bench.stages
        stages.cell(f"decision: {question.name}")
        directory = self.course.plan.directory / DECISIONS / question.name
        identity = question.identity(self.bench.settings)
        known = self.course.round.takeover.outcome(directory, identity, file=DECISION)
        if known:
            stages.say(f"taken over from {known}")
            self.decided.append(known)
            return known
        arms = {"baseline": baseline, "candidate": candidate}
        cells = {arm: measured.attempt for arm, measured in arms.items() if measured}
        attempt = ab.run(question, cells, self.bench)
        self.decided.append(attempt)
        if not self.course.tracker.log(attempt):
            self.outcome.untracked.append(attempt / DECISION)
        return attempt


def prepared(name: str, spec: CellSpec, study: StudySpec, *, base: CellSpec, declared: Declared | None) -> Prepared:
    """A cell of this name; its axes are what differs from `base`. Raises ConfigError."""
    whole = checked(replace(spec, change=declared.change) if declared else spec)
    check_memory(whole, study)
    before, after = flat(base), flat(whole)
    varying = [key for key in dict.fromkeys((*before, *after)) if before.get(key) != after.get(key)]
    axes = {key: after.get(key) for key in varying if not key.startswith("change.")}
    return with_data(Cell(name, whole, axes), study, Missing("no baseline"))


def question(
    name: str, kind: Kind, declared: Declared, overrides: tuple[str, ...], baseline: Prepared, candidate: Prepared
) -> Question:
    """Raises ConfigError for a declaration that contradicts the difference."""
    return decision.Question(
        name=name,
        kind=kind,
        declared=declared,
        overrides=overrides,
        change=change_between(baseline.cell.spec, candidate.cell.spec),
        baseline=baseline,
        candidate=candidate,
    )
