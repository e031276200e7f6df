"""What a run says at its end: a table for people, then one line of JSON for programs, and the exit code.

The surprise: it reads records only. What is not in a record cannot be in the summary.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.console import Console

from analysis.calibration import to_tables
from analysis.compare import compare
from analysis.records import row
from analysis.render import to_table
from gates.verdict import CONFIGURATION, INVALID, Verdict, exit_code

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from experiments.errors import ConfigError

WIDTH = 180
FIGURES = (
    "accept_length",
    "accept_source",
    "verified_rows_per_step",
    "mean_tpot_ms",
    "median_tpot_ms",
    "step_ms",
    "mean_ttft_ms",
    "output_tok_s",
)


def conclude(
    records: Sequence[tuple[dict[str, Any], Path]],
    *,
    untracked: Sequence[Path] = (),
    stopped: str | None = None,
    search: dict[str, Any] | None = None,
) -> int:
    """Print table and JSON line of these records; returns the exit code.

    `untracked`: records that the tracking store lacks. `stopped`: why the cells behind these were not begun.
    `search`: what it found.
    """
    verdicts = [
        Verdict(**{key: record[key] for key in ("status", "verdict", "rule", "reason")}) for record, _ in records
    ]
    code = INVALID if stopped else exit_code(verdicts)
    show(records, Console(width=WIDTH))
    for record, path in records:
        if record["failure"] and record["failure"]["log_tail"]:
            print(f"\n{record['name']}: the log's end ({path})\n{record['failure']['log_tail']}", file=sys.stderr)
    if untracked:
        print("\nnot in the tracking store; `python -m analysis sync OUTPUT_DIR [--uri URI]` files", file=sys.stderr)
        print(*untracked, sep="\n", file=sys.stderr)
    if stopped:
        print(f"\n{stopped}", file=sys.stderr)
    if search:
        print("\nsearch: {best} ({metric} {value}), {measured} of {of} cells; {stopped}".format(**search))
    remarks = {"error": stopped, "search": search, "untracked": [str(path) for path in untracked]}
    content = {"cells": [cell(record, path) for record, path in records], "decisions": decisions(records)}
    print_line(content | {key: value for key, value in remarks.items() if value}, code)
    return code


def show(records: Sequence[tuple[dict[str, Any], Path]], console: Console) -> None:
    """Cells side by side, then what calibrations found, each by itself."""
    if rows := [row(record, str(path)) for record, path in records if "calibration" not in record]:
        to_table(compare(pd.DataFrame(rows)), console)
    for record, _ in records:
        if "calibration" in record:
            to_tables(record, console)


def refuse(error: ConfigError) -> int:
    print(f"configuration error: {error}", file=sys.stderr)
    return _refused(str(error))


def refuse_composition(error: BaseException | None) -> int:
    """Hydra has explained it on stderr; the line for programs says the same without its advice on stack traces."""
    lines = (
        f"{error}\n{error.__cause__ or ''}".splitlines()
        if error
        else ["the command line was refused; stderr shows its usage"]
    )
    return _refused("; ".join(dict.fromkeys(line.strip() for line in lines if line.strip())))


def _refused(error: str) -> int:
    print_line({"cells": [], "decisions": [], "error": error}, CONFIGURATION)
    return CONFIGURATION


def cell(record: dict[str, Any], path: Path) -> dict[str, Any]:
    measured = record["metrics"] or {}
    return {
        "name": record["name"],
        "status": record["status"],
        "verdict": record["verdict"],
        "reason": record["reason"],
        **{key: measured.get(key) for key in FIGURES},
        "gsm8k_accuracy": (record["task"] or {}).get("accuracy"),
        "gates": {name: gate["status"] for name, gate in record["gates"].items()},
        "record": str(path),
        **{key: record[key] for key in ("artifacts", "use") if key in record},
    }


def decisions(records: Sequence[tuple[dict[str, Any], Path]]) -> list[dict[str, Any]]:
    """One entry per candidate that was compared with a baseline."""
    return [
        {
            "cell": record["name"],
            "baseline": record["baseline"],
            "change": record["change"]["parts"],
            "class": record["change"]["class"],
            "verdict": record["verdict"],
            "rule": record["rule"],
            "reason": record["reason"],
        }
        for record, _ in records
        if record["change"] is not None
    ]


def print_line(content: dict[str, Any], code: int) -> None:
    sys.stderr.flush()
    print(json.dumps({**content, "exit": code}), flush=True)
