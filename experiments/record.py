"""The record of one attempt at a cell: its directory, its file, and the only way to write it.

The surprise: a record exists before the cell starts and says "invalid, unfinished". It is replaced as a whole when the
cell ends, so a driver that is killed leaves an honest record behind and never half of one.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from experiments import secrets
from experiments.errors import StorageError

SCHEMA = 1
FILE = "record.json"
DECISION = "decision.json"
"""An attempt at a decision has this in place of a cell's record."""
DECISIONS = "decisions"
"""Where these lie, beside a study's cells."""
SEARCH = "search-{}.json"
"""What a search came to, by its call; beside its cells once a budget has ended it."""


def new_attempt(cell_directory: Path) -> Path:
    """A fresh directory attempt-<k>, k one above the highest there. Raises StorageError."""
    try:
        cell_directory.mkdir(parents=True, exist_ok=True)
        while True:
            highest = max((number(path) for path in attempts(cell_directory)), default=0)
            attempt = cell_directory / f"attempt-{highest + 1}"
            with contextlib.suppress(FileExistsError):  # another driver was faster
                attempt.mkdir()
                return attempt
    except OSError as error:
        raise StorageError(f"no directory for an attempt: {error}") from error


def attempts(cell_directory: Path) -> list[Path]:
    """Oldest first."""
    return sorted(cell_directory.glob("attempt-*"), key=number)


def number(attempt: Path) -> int:
    return int(attempt.name.rpartition("-")[2])


def write_atomically(path: Path, text: str) -> None:
    """All of `text` or what was there before, also across a power cut."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def write_text(path: Path, text: str) -> None:
    """Without secrets, as all that is written here."""
    write_atomically(path, secrets.masked(text))


def write_json(path: Path, value: Any, *, indent: int | None = 2) -> None:
    """Strict JSON: a NaN or an infinity in a record is a bug."""
    write_atomically(path, json.dumps(secrets.masked_tree(value), indent=indent, allow_nan=False) + "\n")


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    write_atomically(path, "".join(json.dumps(secrets.masked_tree(row), allow_nan=False) + "\n" for row in rows))


def record_file(attempt: Path) -> Path:
    """A cell's or a decision's."""
    return attempt / (DECISION if (attempt / DECISION).exists() else FILE)


def read(attempt: Path, file: str = FILE) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((attempt / file).read_text())
    assert record["schema"] == SCHEMA, record["schema"]
    return record


def now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
