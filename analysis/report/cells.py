"""Cells as one table to compare them by, and each by itself with all that a reader may want to check or to run again.

The surprise: the table is `analysis compare`'s own, figure for figure, so the page cannot disagree with the command;
what an invalid cell measured is in neither. Only the verdict of a cell that a decision was made about is that one's,
for the cell by itself knew no more than that its gates had passed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis.compare import compare
from analysis.records import reason, row
from analysis.render import rows
from analysis.report.machine import load
from analysis.report.markup import figure, join, tag
from analysis.report.table import badge, facts, gates, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from markupsafe import Markup

    from analysis.dossier import Filed, Study

COLUMNS = {
    "accept": ("accept_length", 2, ""),
    "rows": ("verified_rows_per_step", 1, ""),
    "TPOT ms": ("mean_tpot_ms", 3, ""),
    "median": ("median_tpot_ms", 3, ""),
    "TPOT ratio": ("tpot_ratio", 3, "x"),
    "step ms": ("step_ms", 3, ""),
    "step ratio": ("step_ratio", 3, "x"),
    "TTFT ms": ("mean_ttft_ms", 1, ""),
    "tok/s": ("output_tok_s", 1, ""),
    "accuracy": ("accuracy", 3, ""),
}
"""Heading: figure, digits, unit."""


def side_by_side(study: Study) -> Markup | None:
    measured = [cell for cell in study.cells if "calibration" not in cell.record]
    if not measured:
        return None
    entries = rows(compare(pd.DataFrame([row(dict(cell.record), cell.shown) for cell in measured])))
    decided = verdicts(study)
    several = len({cell.record["baseline"] for cell in measured} - {None}) > 1
    records = {cell.name: cell.record for cell in measured}
    body = [_row(entry | decided.get(entry["name"], {}), records[entry["name"]], several) for entry in entries]
    open_ = [entry for entry in entries if entry["reason"] and entry["name"] not in decided]
    reasons = [tag("p", tag("b", entry["name"]), f": {entry['reason']}") for entry in open_]
    return tag("section", tag("h3", "Cells"), table(body), tag("div", *reasons, class_="soft"))


def verdicts(study: Study) -> dict[str, dict[str, Any]]:
    """Of decisions, by the cell that they were made about."""
    made = [one.record for one in study.decisions if one.record["kind"] != "leave_one_out"]
    return {one["arms"]["candidate"]["cell"]: {key: one[key] for key in ("verdict", "status")} for one in made}


def one_by_one(study: Study) -> Markup:
    decided = verdicts(study)
    return tag("section", tag("h3", "Each cell"), *(details(cell, decided.get(cell.name)) for cell in study.cells))


def details(cell: Filed, decided: Mapping[str, Any] | None) -> Markup:
    """`decided`: the verdict that a decision about it came to, where there is one."""
    record = cell.record
    final = decided or record
    known: dict[str, str | None] = {
        "by itself" if decided else "verdict": f"{record['rule']}: {reason(dict(record))}",
        "varies": ", ".join(f"{key}={value}" for key, value in record.get("axes", {}).items()),
        **{name: f"{gate['status']}: {gate['reason']}" for name, gate in (record.get("gates") or {}).items()},
        "activation": activation(record.get("activation")),
        "remarks": "; ".join(record.get("flags", [])),
        "audit": "; ".join(
            f"{one['severity']}: {one['subject']}: {one['reason']}" for one in record.get("findings", [])
        ),
        **load(record),
        "record": tag("a", cell.shown, href=cell.shown),
    }
    heading = tag("summary", cell.name, " ", badge(final["verdict"], final["status"]))
    return tag("details", heading, facts(known), commands(cell), log_end(record), data_details=cell.name)


def commands(cell: Filed) -> Markup | None:
    """A block to copy for each line; they wrap on the screen and not in what is copied."""
    lines = cell.commands()
    return join([tag("p", "To paste:", class_="soft"), *(tag("pre", line) for line in lines)]) if lines else None


def log_end(record: Mapping[str, Any]) -> Markup | None:
    tail = (record.get("failure") or {}).get("log_tail")
    return join([tag("p", "The log's end:", class_="soft"), tag("pre", tail)]) if tail else None


def activation(proof: Mapping[str, Any] | None) -> str | None:
    if proof is None:
        return None
    return "as asked for" if proof["ok"] else proof["reason"]


def _row(entry: Mapping[str, Any], record: Mapping[str, Any], several: bool) -> dict[str, str]:
    """`several`: cells have different baselines, so that a ratio has to say to which."""
    name = entry["name"]
    figures = {
        heading: figure(entry[key], digits, unit, of=f"{name}/{key}")
        for heading, (key, digits, unit) in COLUMNS.items()
    }
    if entry["accept_source"] == "simulated":
        figures["accept"] = join([figures["accept"], " simulated"])
    against = {"against": record["baseline"] or ""} if several else {}
    word = badge(entry["verdict"], entry["status"])
    return {"cell": name, "verdict": word, **against, **figures, "gates": gates(record)}
