"""A calibration's record as tables for people: what the confidence head's numbers are worth, and what a row costs.

Errors are of products, as the planner uses them: position k is the claim that drafts 1 to k are all accepted. The
surprise: a cost table is read here as the server reads it, in either of its formats, so that what is printed is what
will be planned with.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from rich.table import Table

from ling_runtime.speculation.dspark.cost import from_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

REQUESTS = (1, 2, 4, 8)


def to_tables(record: Mapping[str, Any], console: Console) -> None:
    """Temperatures and errors by position, step time by requests and rows, and the line that uses both."""
    console.print(confidence(record["name"], record["calibration"]["sts"]))
    console.print(
        costs(record["name"], record["calibration"]["cost_table"], len(record["calibration"]["sts"]["temperatures"]))
    )
    console.print(f"{record['name']}: {record['reason']}; now", highlight=False, markup=False, soft_wrap=True)
    console.print(f"  {record['use']}", highlight=False, markup=False, soft_wrap=True)


def confidence(name: str, sts: Mapping[str, Any]) -> Table:
    table = Table(
        title=f"{name}: calibration error of the confidence that drafts 1..k are accepted", title_justify="left"
    )
    for heading in ("k", "temperature", "ECE before", "ECE after"):
        table.add_column(heading, justify="right")
    columns = sts["temperatures"], sts["ece_before"], sts["ece_after"]
    for k, row in enumerate(zip(*columns, strict=True), 1):
        table.add_row(str(k), *(f"{value:.{digits}f}" for value, digits in zip(row, (2, 4, 4), strict=True)))
    table.add_row("mean", "", *(f"{statistics.fmean(column):.4f}" for column in columns[1:]))
    return table


def costs(name: str, raw: Mapping[str, Any], drafts: int) -> Table:
    """Step time in ms for some numbers of requests, each with 1, half of its and all of its rows."""
    cost = from_json(raw)
    shares = {"1 row each": 1, "half of the window": (drafts + 2) // 2, "the whole window": drafts + 1}
    table = Table(title=f"{name}: step time in ms", title_justify="left")
    for heading in ("requests", *shares):
        table.add_column(heading, justify="right")
    for requests in REQUESTS:
        times = (cost.step_time(requests, requests * rows) for rows in shares.values())
        table.add_row(str(requests), *(f"{1e3 * seconds:.2f}" for seconds in times))
    return table
