"""All that an output directory holds, by study: cells, decisions and the campaign that they were made for.

What `analysis.records` flattens into a table is kept whole here, with the files beside each record, for a report shows
evidence too. The surprise: of cells and decisions alike only the last attempt is here, as in every table, and one that
is being measured right now is not here yet; how many were left out is told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.records import DECISIONS, PATTERN, RecordError, natural, parsed, read
from experiments.claim import running

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    Record = Mapping[str, Any]

CAMPAIGN = "campaign.json"
COMMANDS = "command.txt"


@dataclass(frozen=True, kw_only=True)
class Filed:
    """A record and where it lies: `shown` is relative to the output directory."""

    record: Record
    directory: Path
    shown: str

    @property
    def name(self) -> str:
        return str(self.record["name"])

    def commands(self) -> tuple[str, ...]:
        """Lines to paste; none where the attempt ended before it had any."""
        path = self.directory / COMMANDS
        return tuple(path.read_text().splitlines()) if path.exists() else ()


@dataclass(frozen=True, kw_only=True)
class Study:
    """Cells by name, decisions in the order in which they were made."""

    name: str
    cells: tuple[Filed, ...]
    decisions: tuple[Filed, ...]
    campaign: Record | None
    superseded: int
    """Attempts that a later one replaced."""
    running: tuple[str, ...]
    """What is being measured right now."""

    def cell(self, name: str | None) -> Filed | None:
        return next((filed for filed in self.cells if filed.name == name), None)


def studies(directory: Path, only: str | None = None) -> tuple[Study, ...]:
    """By name. Raises RecordError, also where there is nothing."""
    found = [filed(path, directory) for pattern in (PATTERN, DECISIONS) for path in sorted(directory.rglob(pattern))]
    names = sorted(
        {one.record["study"] for one in found} & ({only} if only else {one.record["study"] for one in found})
    )
    if not names:
        of_study = f" of study {only}" if only else ""
        raise RecordError(f"no record.json{of_study} under {directory}")
    return tuple(study_of(name, [one for one in found if one.record["study"] == name]) for name in names)


def study_of(name: str, found: list[Filed]) -> Study:
    busy = [one for one in found if running(one.directory)]
    ended = [one for one in found if one not in busy]
    last = latest(ended)
    return Study(
        name=name,
        cells=tuple(sorted((one for one in last if not is_decision(one)), key=lambda one: natural(one.name))),
        decisions=tuple(sorted(filter(is_decision, last), key=lambda one: (one.record["started_utc"], one.name))),
        campaign=campaign(found),
        superseded=len(ended) - len(last),
        running=tuple(one.name for one in busy),
    )


def filed(path: Path, directory: Path) -> Filed:
    record = read(path)
    for key in ("study", "name", "attempt", "status", "verdict"):
        if key not in record:
            raise RecordError(f"{path}: no key {key!r}")
    return Filed(record=record, directory=path.parent, shown=path.relative_to(directory).as_posix())


def is_decision(one: Filed) -> bool:
    return "kind" in one.record


def latest(found: Iterable[Filed]) -> list[Filed]:
    last: dict[tuple[bool, str], Filed] = {}
    for one in found:
        key = is_decision(one), one.name
        if key not in last or one.record["attempt"] > last[key].record["attempt"]:
            last[key] = one
    return list(last.values())


def campaign(found: Iterable[Filed]) -> Record | None:
    """Raises RecordError for a file that cannot be read."""
    for one in found:
        path = one.directory.parent.parent / CAMPAIGN
        if path.exists():
            return parsed(path)
    return None
