"""Record files under a directory as one pandas table, a row per cell.

The surprise: only the last attempt of a cell counts, even if an earlier one was valid. A cell that was measured again
and broke is broken, and a table that showed the older number would hide it.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SCHEMA = 1
PATTERN = "attempt-*/record.json"  # not the copies that a tracking store keeps as artifacts
DECISIONS = "attempt-*/decision.json"
METRICS = (
    "accept_length",
    "accept_source",
    "accept_length_request_mean",
    "verified_rows_per_step",
    "mean_tpot_ms",
    "median_tpot_ms",
    "step_ms",
    "mean_ttft_ms",
    "median_ttft_ms",
    "output_tok_s",
)


class RecordError(ValueError):
    """A record file that cannot be read; the message names it."""


def load(directory: Path, study: str | None = None) -> pd.DataFrame:
    """The last attempt of every cell under `directory`, by study and cell. Raises RecordError, also for no records."""
    paths = sorted(directory.rglob(PATTERN))
    rows = [row(read(path), path.relative_to(directory).as_posix()) for path in paths]
    chosen = [entry for entry in latest(rows) if study in (None, entry["study"])]
    if not chosen:
        of_study = f" of study {study}" if study else ""
        raise RecordError(f"no record.json{of_study} under {directory}")
    chosen.sort(key=lambda entry: (entry["study"], natural(entry["name"])))
    return pd.DataFrame(chosen)


def parsed(path: Path) -> dict[str, Any]:
    """Raises RecordError."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: not JSON ({error})") from error
    if not isinstance(content, dict):
        raise RecordError(f"{path}: no JSON object")
    return content


def read(path: Path) -> dict[str, Any]:
    """Raises RecordError, also for records of another program version."""
    record = parsed(path)
    if record.get("schema") != SCHEMA:
        raise RecordError(f"{path}: schema {record.get('schema')}, this program reads {SCHEMA}")
    return record


def row(record: dict[str, Any], path: str) -> dict[str, Any]:
    """The figures of one record, flat. A cell that failed early has none."""
    metrics, task = record.get("metrics") or {}, record.get("task") or {}
    try:
        identity = {key: record[key] for key in ("study", "name", "attempt", "role", "baseline", "status", "verdict")}
    except KeyError as error:
        raise RecordError(f"{path}: no key {error}") from error
    return {
        **identity,
        **{key: metrics.get(key) for key in METRICS},
        "accuracy": task.get("accuracy"),
        "questions": task.get("questions"),
        "gates": {name: gate["status"] for name, gate in (record.get("gates") or {}).items()},
        "reason": reason(record),
        "record": path,
    }


def reason(record: dict[str, Any]) -> str | None:
    failure = record.get("failure")
    return f"{failure['class']} ({failure['phase']}): {failure['message']}" if failure else record.get("reason")


def latest(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    last: dict[tuple[str, str], dict[str, Any]] = {}
    for entry in rows:
        key = entry["study"], entry["name"]
        if key not in last or entry["attempt"] > last[key]["attempt"]:
            last[key] = entry
    return list(last.values())


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """dspark-8 before dspark-16: digits compare as numbers."""
    parts = re.findall(r"\d+|\D+", name)
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts)
