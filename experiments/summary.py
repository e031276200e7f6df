"""What a run says at its end: a table for people, then one line of JSON for programs, and the exit code.

The surprise: it reads records only. What is not in a record cannot be in the summary.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from analysis.calibration import to_tables
from analysis.compare import compare
from analysis.records import row
from analysis.render import to_table
from experiments.comparison import ledger
from gates.verdict import CONFIGURATION, INVALID, Verdict, exit_code

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from experiments.errors import ConfigError

    Filed = tuple[dict[str, Any], Path]

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
    records: Sequence[Filed],
    *,
    decided: Sequence[Filed] = (),
    campaign: dict[str, Any] | None = None,
    untracked: Sequence[Path] = (),
    stopped: str | None = None,
    search: dict[str, Any] | None = None,
    cluster: Sequence[dict[str, Any]] = (),
) -> int:
    """Print table and JSON line of these records; returns the exit code.

    `decided`: records of decisions about these cells. `campaign`: what its file says in sum. `untracked`: records that
    the tracking store lacks. `stopped`: why what was to follow was not begun. `search`: what it found.
    `cluster`: which jobs had which cell, and what came of each attempt.
    """
    judged = [record for record, _ in (*records, *decided) if record.get("kind") != "leave_one_out"]
    code = INVALID if stopped else exit_code(map(Verdict.of, judged))
    show(records, Console(width=WIDTH))
    if decided:
        show_decisions([record for record, _ in decided], Console(width=WIDTH))
    for line in (campaign or {}).get("leave_one_out", ()):
        print(ledger.told(line))
    for record, path in (*records, *decided):
        if record["failure"] and record["failure"]["log_tail"]:
            print(f"\n{record['name']}: the log's end ({path})\n{record['failure']['log_tail']}", file=sys.stderr)
    for line in told(cluster):
        print(line)
    if untracked:
        print("\nnot in the tracking store; `python -m analysis sync OUTPUT_DIR [--uri URI]` files", file=sys.stderr)
        print(*untracked, sep="\n", file=sys.stderr)
    if stopped:
        print(f"\n{stopped}", file=sys.stderr)
    if search:
        print("\nsearch: {best} ({metric} {value}), {measured} of {of} cells; {stopped}".format(**search))
    remarks: dict[str, Any] = {"error": stopped, "untracked": [str(path) for path in untracked]}
    lines = [ledger.entry(record, str(path)) for record, path in decided]
    remarks |= {"campaign": campaign, "search": search, "cluster": [*cluster]}
    content = {"cells": [cell(record, path) for record, path in records], "decisions": lines or decisions(records)}
    print_line(content | {key: value for key, value in remarks.items() if value}, code)
    return code


def told(cluster: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line per cell that went to a cluster: its attempts in order, with job and node."""
    if cluster:
        yield "\non the cluster:"
    width = max((len(entry["name"]) for entry in cluster), default=0)
    for entry in cluster:
        attempts = [f"{one['outcome']} (job {one['job']} on {one['node']})" for one in entry["attempts"]]
        yield f"  {entry['name']:{width}}  {', then '.join(attempts) or entry['state']}"


def show(records: Sequence[Filed], console: Console) -> None:
    """Cells side by side, then what calibrations found, each by itself."""
    if rows := [row(record, str(path)) for record, path in records if "calibration" not in record]:
        to_table(compare(pd.DataFrame(rows)), console)
    for record, _ in records:
        if "calibration" in record:
            to_tables(record, console)


def show_decisions(records: Sequence[dict[str, Any]], console: Console) -> None:
    """The interval shown for step time and TPOT is the always-valid one, which decided."""
    table = Table(box=None, pad_edge=False)
    for column in ("decision", "against", "class", "step time", "TPOT", "accept", "blocks", "verdict", "rule"):
        table.add_column(column, no_wrap=column not in ("decision", "against"))
    for record in records:
        line = ledger.entry(record, "")
        ratios = [ledger.percent(line[figure]) for figure in ledger.FIGURES]
        verdict = line["verdict"] or line["status"]
        ratios[-1] += " simulated" * (line["accept_source"] == "simulated")
        blocks = str(line["blocks"] or "-")
        table.add_row(line["name"], line["baseline"], line["class"], *ratios, blocks, verdict, line["rule"])
    console.print(table)
    for record in records:
        console.print(f"{record['name']}: {record['reason']}", markup=False, highlight=False)


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
        "findings": record.get("findings", []),
        "record": str(path),
        **{key: record[key] for key in ("artifacts", "use") if key in record},
    }


def decisions(records: Sequence[Filed]) -> list[dict[str, Any]]:
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
