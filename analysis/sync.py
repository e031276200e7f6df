"""`python -m analysis sync OUTPUT_DIR`: file in the tracking store what it lacks of the records that are there.

Through the very code that files during a study, so a store filled afterwards equals one that was there all the time. It
may be called again at any time. The surprise: every attempt is filed, also those of drivers that were killed before
they could; only one that is being measured right now is left alone, since its record will change.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from analysis.records import DECISIONS, PATTERN, RecordError, read
from experiments.claim import running
from experiments.store import open_shelf

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


@dataclass(frozen=True)
class Synced:
    filed: tuple[Path, ...]
    there: int
    """Records that the store had already."""


def sync(directory: Path, uri: str | None = None) -> Synced:
    """`uri` None: the SQLite file in `directory`. Raises RecordError, ConfigError for a store that takes no writing."""
    paths = sorted(path for pattern in (PATTERN, DECISIONS) for path in directory.rglob(pattern))
    found = [(path.parent, _complete(path)) for path in paths if not running(path.parent)]
    if not found:
        raise RecordError(f"no record.json under {directory}")
    filed: list[Path] = []
    for study, records in groupby(sorted(found, key=_key), key=lambda one: one[1]["study"]):
        shelf = open_shelf(directory, study, uri)
        for text, group in groupby(records, key=lambda one: json.dumps(one[1]["invocation"])):
            invocation: dict[str, Any] = json.loads(text)
            parent = shelf.parent(study, invocation)
            filed += [attempt for attempt, _ in group if shelf.file(parent, attempt)]
            shelf.end(parent, invocation)
    return Synced(tuple(filed), len(found) - len(filed))


def _complete(path: Path) -> dict[str, Any]:
    record = read(path)
    if "invocation" not in record:
        raise RecordError(f"{path}: no key 'invocation'")
    return record


def _key(one: tuple[Path, dict[str, Any]]) -> tuple[str, ...]:
    """Studies by name, calls and records in the order in which they began."""
    _, record = one
    invocation = record["invocation"]
    return record["study"], invocation["started_utc"], invocation["id"], record["started_utc"], record["name"]


def told(synced: Synced) -> Iterable[str]:
    yield from (f"filed {path}" for path in synced.filed)
    yield f"{len(synced.filed)} filed, {synced.there} there already"
