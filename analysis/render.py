"""A comparison as a table for people, and as CSV and JSON for programs.

The surprise: people get rounded figures and the programs get all digits, so two tables may look alike where their JSON
does not. An accept length that was simulated says so in every format.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

Entry = dict[str, Any]

MARKS = {"pass": "passed", "fail": "FAILED", "not_run": "NOT RUN"}


def number(key: str, digits: int, suffix: str = "") -> Callable[[Entry], str]:
    return lambda entry: "" if pd.isna(entry[key]) else f"{entry[key]:.{digits}f}{suffix}"


def accept(entry: Entry) -> str:
    note = " simulated" if entry["accept_source"] == "simulated" else ""
    return number("accept_length", 2, note)(entry)


def gates(entry: Entry) -> str:
    """Those that did not pass by name, the rest as a count."""
    counts = Counter(entry["gates"].values())
    bad = [f"{name} {MARKS[status]}" for name, status in entry["gates"].items() if status in ("fail", "not_run")]
    return ", ".join([f"{counts['pass']} passed", *bad]) if counts else ""


COLUMNS: dict[str, Callable[[Entry], str]] = {
    "cell": lambda entry: entry["name"],
    "status": lambda entry: entry["status"],
    "verdict": lambda entry: entry["verdict"] or "",
    "accept": accept,
    "rows": number("verified_rows_per_step", 1),
    "TPOT ms": number("mean_tpot_ms", 3),
    "median": number("median_tpot_ms", 3),
    "TPOT ratio": number("tpot_ratio", 3, "x"),
    "step ms": number("step_ms", 3),
    "step ratio": number("step_ratio", 3, "x"),
    "TTFT ms": number("mean_ttft_ms", 1),
    "tok/s": number("output_tok_s", 1),
    "accuracy": number("accuracy", 3),
    "gates": gates,
}
LEFT = ("cell", "status", "verdict", "gates")


def to_table(comparison: pd.DataFrame, console: Console) -> None:
    """One table a study; reasons stand below, where they have room."""
    for study, cells in comparison.groupby("study", sort=False):
        table = Table(title=str(study), title_justify="left")
        entries = rows(cells)
        for heading in COLUMNS:
            table.add_column(heading, justify="left" if heading in LEFT else "right", overflow="fold")
        for entry in entries:
            table.add_row(*(show(entry) for show in COLUMNS.values()))
        console.print(table)
        for entry in filter(timed_by_step, entries):
            console.print(f"{entry['name']}: {step_account(entry)}", highlight=False, markup=False)
        for entry in entries:
            if entry["reason"]:
                console.print(f"{entry['name']}: {entry['reason']}", highlight=False, markup=False)


def timed_by_step(entry: Entry) -> bool:
    """Its server's host runs ahead of its device, or its acceptance was simulated to time a step."""
    told = entry["accept_source"] == "simulated" or not pd.isna(entry["slack_ms"])
    return told and not pd.isna(entry["tpot_of_step"])


def step_account(entry: Entry) -> str:
    """What the client sees of a step against what the server says that it took, and what the host had to spare."""
    note = " (simulated)" * (entry["accept_source"] == "simulated")
    told = (
        f"mean TPOT {entry['mean_tpot_ms']:.3f} ms = {entry['tpot_of_step']:.3f} x the server's step of "
        f"{entry['server_step_ms']:.3f} ms / accept length {entry['accept_length']:.2f}{note}"
    )
    spare = number("slack_ms", 3, " ms a step")(entry)
    return f"{told}; host's slack {spare}, device dry in {entry['dry_share']:.1%} of steps" if spare else told


def to_csv(comparison: pd.DataFrame) -> str:
    flat = comparison.assign(gates=[";".join(f"{k}={v}" for k, v in cell.items()) for cell in comparison["gates"]])
    return flat.to_csv(index=False, lineterminator="\n")


def to_json(comparison: pd.DataFrame) -> str:
    return json.dumps({"cells": rows(comparison)}, indent=2) + "\n"


def rows(comparison: pd.DataFrame) -> list[Entry]:
    """Plain values, None where there is none."""
    plain = comparison.astype(object).where(comparison.notna(), None)
    return [{str(key): value for key, value in entry.items()} for entry in plain.to_dict("records")]
