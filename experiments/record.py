"""The record of one attempt at a cell: its directory, its file, and the only way to write it.

The surprise: a record exists before the cell starts and says "invalid, unfinished". It is replaced as a whole when the
cell ends, so a driver that is killed leaves an honest record behind and never half of one.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import tempfile
from pathlib import Path
from typing import Any

SCHEMA = 1
FILE = "record.json"


def new_attempt(cell_directory: Path) -> Path:
    """A fresh directory attempt-<k>, k one above the highest there."""
    cell_directory.mkdir(parents=True, exist_ok=True)
    attempt = cell_directory / f"attempt-{1 + max((number(path) for path in attempts(cell_directory)), default=0)}"
    attempt.mkdir()
    return attempt


def attempts(cell_directory: Path) -> list[Path]:
    """Oldest first."""
    return sorted(cell_directory.glob("attempt-*"), key=number)


def number(attempt: Path) -> int:
    return int(attempt.name.rpartition("-")[2])


def write_atomically(path: Path, text: str) -> None:
    """All of `text` or what was there before, also across a power cut."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    Path(temporary).chmod(0o644)
    Path(temporary).replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def write_json(path: Path, value: Any) -> None:
    """Strict JSON: a NaN or an infinity in a record is a bug."""
    write_atomically(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    write_atomically(path, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))


def read(attempt: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((attempt / FILE).read_text())
    assert record["schema"] == SCHEMA, record["schema"]
    return record


def now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
