"""A calibration's record as tables for people: what the confidence head's numbers are worth, and what a row costs.

Two errors stand at each position: of the head's own claim about draft k, and of the product of all claims up to it,
which is what rows are planned by and what temperatures are fitted to. The surprise: the cost table is read here as the
server reads it, so that what is printed is what will be planned with.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from rich.table import Table

from ling_runtime.speculation.dspark.cost import from_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

ERRORS = ("ece_before", "ece_after", "conditional_ece_before", "conditional_ece_after")


def to_tables(record: Mapping[str, Any], console: Console) -> None:
    """Temperatures and errors by position, step time by requests and rows, and the line that uses both."""
    sts, costs = record["calibration"]["sts"], record["calibration"]["cost_table"]
    console.print(confidence_table(record["name"], sts))
    console.print(cost_table(record["name"], costs, window=len(sts["temperatures"]) + 1))
    for flag in record["flags"]:
        console.print(f"{record['name']}: {flag}", highlight=False, markup=False)
    console.print(f"{record['name']}: {record['reason']}; to use them:", highlight=False, markup=False)
    console.print(record["use"], highlight=False, markup=False, soft_wrap=True)


def confidence_table(name: str, sts: Mapping[str, Any]) -> Table:
    table = Table(title=f"{name}: calibration error (ECE) of the confidence that ...", title_justify="left")
    for heading in (
        "k",
        "temperature",
        "drafts 1..k are right",
        "after",
        "draft k is, if those before it are",
        "after",
    ):
        table.add_column(heading, justify="right")
    columns = [sts[key] for key in ERRORS]
    for k, (temperature, *errors) in enumerate(zip(sts["temperatures"], *columns, strict=True), 1):
        table.add_row(str(k), f"{temperature:.2f}", *(f"{error:.4f}" for error in errors))
    table.add_row("mean", "", *(f"{statistics.fmean(column):.4f}" for column in columns))
    return table


def cost_table(name: str, raw: Mapping[str, Any], window: int) -> Table:
    """For some numbers of requests, the time of a step with one, half of its and all of its rows each."""
    cost, half = from_json(raw), (window + 1) // 2
    table = Table(title=f"{name}: time of a step in ms", title_justify="left")
    for heading in ("requests", "1 row each", f"{half} rows each", f"{window} rows each", "per row"):
        table.add_column(heading, justify="right")
    for requests in raw["bs_probes"]:
        least, middle, most = (1e3 * cost.step_time(requests, requests * rows) for rows in (1, half, window))
        slope = (most - least) / (requests * (window - 1))
        table.add_row(str(requests), f"{least:.2f}", f"{middle:.2f}", f"{most:.2f}", f"{slope:.3f}")
    return table
