"""One sweep that went to a cluster, as files on the shared disk: its cells, and what has become of each.

A job, the driver that submitted it and a collector that comes after that driver's death all know the sweep from here
and from the records, and from nothing else. The surprise: nothing is handed back by a job. Its records are its result.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import ruler
from experiments.child import ROOT
from experiments.cluster.queue import PLACE
from experiments.composition import build
from experiments.errors import STOPPED, ConfigError
from experiments.plan import Cell, Invocation
from experiments.record import FILE as RECORD
from experiments.record import attempts, number, read, write_atomically, write_json
from experiments.sharing import read_whole
from experiments.spec import CellSpec, StudySpec
from experiments.study import is_trusted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from experiments.preparation import Plan

FILE = "batch.json"
PACKAGES = ("experiments", "gates", "analysis", "ling_runtime")
TAKEN_OVER = "taken_over"

UNWRITTEN = (
    "jobs are told by a file what to measure, and no secret is written to one; allowed is a secret in the "
    "environment of this call, which jobs inherit"
)

Try = tuple[Path, dict[str, Any]]
"""An attempt and its record."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    study: StudySpec
    cells: tuple[Cell, ...]
    invocation: Invocation
    code: str
    """Hash of the code that it was submitted with."""

    @classmethod
    def of(cls, plan: Plan, invocation: Invocation) -> Batch:
        study = replace(plan.study, output_dir=str(Path(plan.study.output_dir).absolute()))
        cells = tuple(item.cell for item in plan.cells)
        return cls(study=study, cells=cells, invocation=invocation, code=code())

    @classmethod
    def read(cls, directory: Path) -> Batch:
        values = json.loads((directory / FILE).read_text())
        cells = (Cell(cell["name"], build(CellSpec, cell["spec"]), cell["axes"]) for cell in values["cells"])
        return cls(
            study=build(StudySpec, values["study"]),
            cells=tuple(cells),
            invocation=Invocation(**values["invocation"]),
            code=values["code"],
        )

    def write(self) -> None:
        """Raises ConfigError for what no file may hold: jobs would read something else than was asked for."""
        self.directory.mkdir(parents=True)
        write_json(self.directory / FILE, asdict(self))
        if json.loads((self.directory / FILE).read_text()) != json.loads(json.dumps(asdict(self))):
            shutil.rmtree(self.directory)
            raise ConfigError("launcher", UNWRITTEN)

    @property
    def place(self) -> Path:
        """The study's directory."""
        return Path(self.study.output_dir) / self.study.study

    @property
    def directory(self) -> Path:
        return self.place / PLACE / self.invocation.id

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(cell.name for cell in self.cells)

    def cell(self, name: str) -> Cell:
        return self.cells[self.names.index(name)]

    def tries(self, name: str) -> Iterator[Try]:
        """The attempts at a cell that belong to this batch, oldest first."""
        for attempt in attempts(self.place / name):
            if (attempt / RECORD).exists():
                record = read(attempt)
                if record["invocation"]["id"] == self.invocation.id:
                    yield attempt, record

    def ended(self, name: str) -> int:
        """The last attempt at a cell before this batch: what `retry` speaks of."""
        earlier = [
            number(attempt)
            for attempt in attempts(self.place / name)
            if read_whole(attempt / RECORD).get("started_utc", "") < self.invocation.started_utc
        ]
        return max(earlier, default=0)

    def last(self, name: str) -> Try | None:
        """The attempt that stands for a cell: this batch's last, or one of an earlier call's."""
        note = self.directory / TAKEN_OVER / name
        if note.exists():
            attempt = Path(note.read_text())
            return attempt, read(attempt)
        return max(self.tries(name), key=lambda one: one[1]["attempt"], default=None)

    def take_over(self, name: str, attempt: Path) -> None:
        note = self.directory / TAKEN_OVER / name
        note.parent.mkdir(exist_ok=True)
        write_atomically(note, str(attempt))

    def settled(self, name: str) -> Try | None:
        """Its last attempt, if that tells something about the cell."""
        last = self.last(name)
        return last if last and is_settled(last[1]) else None

    def baseline(self) -> Try | None:
        """Of all the others: the first cell that can be trusted."""
        for name in self.names:
            found = self.settled(name)
            if found and found[1]["baseline"] is None and is_trusted(found[1]):
                return found
        return None


def code() -> str:
    """Hash of all that measures and judges."""
    return ruler.digest(sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py")))


def is_settled(record: dict[str, Any]) -> bool:
    return record["status"] == "valid" or (record["failure"] or {}).get("class") not in STOPPED


def chunks(names: Sequence[str], size: int) -> list[tuple[str, ...]]:
    """As even as may be, none longer than `size`."""
    count = -(-len(names) // size)
    return [tuple(names[start * len(names) // count : (start + 1) * len(names) // count]) for start in range(count)]
