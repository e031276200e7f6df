"""`python -m analysis decisions OUTPUT_DIR`: the ledger as a table for people, and as CSV and JSON for programs.

The surprise: the table leaves evidence and hypotheses to the lines below it, where they have room; CSV and JSON have a
column for everything.
"""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

from rich.table import Table

from analysis.ledger import FIGURES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from analysis.ledger import Line

COLUMNS = ("decision", "against", "class", "verdict", "rule", "step time", "TPOT", "accept", "blocks", "gates")
FOLDED = ("decision", "against", "gates")


def to_table(lines: Sequence[Line], console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, no_wrap=column not in FOLDED, overflow="fold")
    for line in lines:
        figures = [str(getattr(line, figure) or "-") for figure in FIGURES]
        verdict = line.verdict or line.status
        table.add_row(
            line.name, line.baseline, line.class_, verdict, line.rule, *figures, str(line.blocks or "-"), gates(line)
        )
    console.print(table)
    for line in lines:
        console.print(f"\n{line.name}: {line.reason}", markup=False, highlight=False)
        for heading, text in below(line).items():
            console.print(f"  {heading}: {text}", markup=False, highlight=False)


def below(line: Line) -> dict[str, str]:
    """What a line has to say beyond its columns."""
    texts = {
        "change": "; ".join(line.change) or "none",
        "hypothesis": line.hypothesis,
        "rounding declared": line.declared,
        "figures": None if line.origin == "measured" else line.origin,
        "evidence": line.evidence,
    }
    return {heading: text for heading, text in texts.items() if text}


def gates(line: Line) -> str:
    """Those that failed or did not run by name, the passed ones as a count."""
    passed = sum(status == "pass" for status in line.gates.values())
    bad = [f"{name} {status}" for name, status in line.gates.items() if status in ("fail", "not_run")]
    return ", ".join([*bad, f"{passed} passed"]) if line.gates else "-"


def to_csv(lines: Sequence[Line]) -> str:
    """Ratios in three columns each, all digits."""
    out = io.StringIO()
    rows = [flat(line.to_json()) for line in lines]
    writer = csv.DictWriter(out, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def flat(entry: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for key, value in entry.items():
        if key in FIGURES:
            names = ("estimate", "low", "high", "source")
            row |= {f"{key}_{name}": value[name] if value else None for name in names}
        elif key == "gates":
            row[key] = ";".join(f"{name}={status}" for name, status in value.items())
        else:
            row[key] = "; ".join(value) if isinstance(value, tuple) else value
    return row


def to_json(lines: Sequence[Line]) -> str:
    return json.dumps({"decisions": [line.to_json() for line in lines]}, indent=2) + "\n"
