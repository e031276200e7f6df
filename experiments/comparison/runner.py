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
from experiments.plan import Cell, flat
from experiments.preparation import change_between, with_data
from experiments.record import DECISION, DECISIONS, new_attempt, read
from gates.evidence import Missing

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from experiments.comparison.ab import Bench
    from experiments.comparison.decision import Kind, Question
    from experiments.comparison.spec import Declared
    from experiments.preparation import Prepared
    from experiments.spec import CellSpec, StudySpec
    from experiments.study import Course, Outcome


@dataclass(frozen=True)
class Measured:
    """A cell and the attempt that holds its record."""

    item: Prepared
    attempt: Path

    @property
    def record(self) -> dict[str, Any]:
        return read(self.attempt)


@dataclass(frozen=True, kw_only=True)
class Runner:
    course: Course
    bench: Bench
    outcome: Outcome
    decided: list[Path] = field(default_factory=list)

    def cell(self, item: Prepared, baseline: Measured | None = None) -> Measured:
        """Raises Interrupted, StorageError."""
        stages = self.bench.stages
        stages.cell(item.cell.name)
        if known := self._known(item, baseline):
            self.outcome.attempts.append(known)
            stages.say(f"taken over from {known}")
            return Measured(item, known)
        attempt = new_attempt(self.course.plan.directory / item.cell.name)
        against = (baseline.item.cell.spec, baseline.attempt) if baseline else None
        study.measure(self.course, study.begin(self.course, item, attempt, against), stages, self.outcome)
        return Measured(item, attempt)

    def decision(self, question: Question, baseline: Measured | None, candidate: Measured | None) -> Path:
        """Raises Interrupted, StorageError."""
        stages = self.bench.stages
        stages.cell(f"decision: {question.name}")
        settings = self.bench.settings
        known = None
        if self.course.plan.study.resume:
            directory = self.course.plan.directory / DECISIONS / question.name
            known = decision.earlier(directory, question.identity(settings))
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

    def _known(self, item: Prepared, baseline: Measured | None) -> Path | None:
        """A valid attempt that was judged against the baseline it would have now."""
        if not self.course.plan.study.resume:
            return None
        attempt = study.valid_attempt(self.course.plan, item)
        name = baseline.item.cell.name if baseline else None
        return attempt if attempt and read(attempt)["baseline"] == name else None


def prepared(name: str, spec: CellSpec, study: StudySpec, *, base: CellSpec, declared: Declared | None) -> Prepared:
    """A cell of this name; its axes are what differs from `base`. Raises ConfigError."""
    whole = checked(replace(spec, change=declared.change) if declared else spec)
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
