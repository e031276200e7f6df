"""An ordered list of changes, each held against the best so far; what is kept becomes the baseline of the next.

At the end each kept change is left out of the final stack, because what it was worth when it came in need not be what
it is worth among those that came later. The surprise: every stack is made from the base and the kept changes, never by
editing the last one, so leaving one out is the same arithmetic as putting one in.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from experiments.comparison import ledger
from experiments.comparison.patch import apply
from experiments.comparison.runner import prepared, question
from experiments.errors import ConfigError
from experiments.plan import Invocation
from experiments.record import DECISION, read, write_json
from experiments.study import Measured, is_trusted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from experiments.comparison.patch import Patch
    from experiments.comparison.runner import Runner
    from experiments.comparison.spec import ABSpec, Entry
    from experiments.preparation import Prepared
    from experiments.spec import CellSpec, StudySpec

BASE = "base"
FILE = "campaign.json"


@dataclass(frozen=True)
class Step:
    entry: Entry
    patch: Patch


@dataclass(kw_only=True)
class Campaign:
    """`base` as composed, not yet completed, so that a default stays a default under every change."""

    identity: str
    base: CellSpec
    steps: tuple[Step, ...]
    study: StudySpec
    leave_one_out: bool
    runner: Runner
    entries: list[dict[str, Any]] = field(default_factory=list)
    """A line per step that was gone through."""
    kept: list[Step] = field(default_factory=list)
    without: list[dict[str, Any]] = field(default_factory=list)

    def run(self) -> None:
        """Raises Interrupted, StorageError."""
        self.write(None)
        best = self.runner.cell(self.item(BASE, ()))
        if not is_trusted(best.record):
            return  # its record says why, and there is nothing to compare with
        for step in self.steps:
            best = self.try_(step, best)
            self.write(best)
        if self.leave_one_out:
            for step in self.kept:
                self.without.append(self.leave_out(step, best))
                self.write(best)

    def item(self, name: str, steps: Sequence[Step], entry: Entry | None = None) -> Prepared:
        """The base with these changes on it. Raises ConfigError where they do not go together."""
        spec = apply(self.base, [step.patch for step in steps])
        return prepared(name, spec, self.study, base=self.runner.bench.floor_cell.cell.spec, declared=entry)

    def try_(self, step: Step, best: Measured) -> Measured:
        """The best after this step."""
        entry = step.entry
        try:
            item = self.item(entry.name, [*self.kept, step], entry)
            asked = question(entry.name, "change", entry, entry.overrides, best.item, item)
        except ConfigError as error:
            self.entries.append(ledger.skipped(entry.name, "conflict", f"with what is kept: {error}"))
            return best
        if asked.same_arms:
            reason = f"{best.item.cell.name} has it already"
            self.entries.append(ledger.skipped(entry.name, "no_difference", reason))
            return best
        candidate = self.runner.cell(item, best)
        attempt = self.runner.decision(asked, best, candidate)
        record = read(attempt, DECISION)
        self.entries.append(ledger.entry(record, self.shown(attempt)))
        if record["verdict"] != "keep":
            return best
        self.kept.append(step)
        return candidate

    def leave_out(self, step: Step, best: Measured) -> dict[str, Any]:
        """What the step is worth in the final stack, and how far that is from what it was worth when it came in."""
        entry = step.entry
        name, whole = f"without-{entry.name}", best.item.cell.name
        then = next(line for line in self.entries if line["name"] == entry.name)
        if step is self.kept[-1]:  # it came into this very stack
            return ledger.worth(name, then, then)
        try:
            item = self.item(name, [other for other in self.kept if other is not step])
            stack = self.item(whole, self.kept, entry)  # this change is declared, and not the last one
            asked = question(name, "leave_one_out", entry, entry.overrides, item, stack)
        except ConfigError as error:
            return ledger.skipped(name, "conflict", f"others rest on it: {error}")
        if asked.same_arms:
            return ledger.skipped(name, "no_difference", "a later change took its place")
        attempt = self.runner.decision(asked, None, None)
        return ledger.worth(name, then, ledger.entry(read(attempt, DECISION), self.shown(attempt)))

    def shown(self, attempt: Path) -> str:
        return str((attempt / DECISION).relative_to(self.runner.course.plan.directory))

    def write(self, best: Measured | None) -> None:
        directory = self.runner.course.plan.directory
        content = {
            "schema": 1,
            "study": self.study.study,
            "identity": self.identity,
            "invocation": asdict(self.runner.course.invocation),
            "changes": self.entries,
            "kept": [step.entry.name for step in self.kept],
            "leave_one_out": self.without,
            "best": best and {"cell": best.item.cell.name, "record": str(best.attempt.relative_to(directory))},
        }
        directory.mkdir(parents=True, exist_ok=True)
        write_json(directory / FILE, content)


def identity(cells: Sequence[Prepared], settings: ABSpec) -> str:
    """Of the base and every change by itself: what a campaign that goes on must have in common with the one begun."""
    text = json.dumps([[item.identity for item in cells], asdict(settings)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def summed(directory: Path) -> dict[str, Any] | None:
    """Of a study's campaign, if it is one: what is not in any record of a decision."""
    path = directory / FILE
    if not path.exists():
        return None
    content = json.loads(path.read_text())
    skipped = [line for line in content["changes"] if line["record"] is None]
    return {"kept": content["kept"], "skipped": skipped, "leave_one_out": content["leave_one_out"]}


def begun(directory: Path, wanted: str) -> Invocation | None:
    """The call that began the campaign of this identity; one that goes on belongs to it."""
    path = directory / FILE
    if not path.exists():
        return None
    content = json.loads(path.read_text())
    return Invocation(**content["invocation"]) if content["identity"] == wanted else None
