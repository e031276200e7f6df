"""Decisions as lines: what a table shows, what the JSON line says, what a campaign's file keeps of each. Pure.

The surprise: a line holds nothing that is not in a decision's record, except for an interaction, which is a difference
between two of them.
"""

from __future__ import annotations

from math import expm1, log1p
from typing import Any

FIGURES = ("step_time", "tpot", "accept")


def entry(record: dict[str, Any], shown: str) -> dict[str, Any]:
    """One decision; log-ratios as they are on record. `shown`: where that is."""
    compared = record["comparison"] or {}
    floor = record["floor"]
    return {
        "name": record["name"],
        "kind": record["kind"],
        "cell": record["arms"]["candidate"]["cell"],
        "baseline": record["arms"]["baseline"]["cell"],
        "change": record["change"]["parts"],
        "class": record["change"]["class"],
        "hypothesis": record["hypothesis"],
        "status": record["status"],
        "verdict": record["verdict"],
        "rule": record["rule"],
        "reason": record["reason"],
        "criterion": record["criterion"],
        **{figure: _deciding(figure, compared) for figure in FIGURES},
        "accept_source": record.get("accept_source"),
        "mde": compared[record["criterion"]]["mde"] if compared else None,
        "floor": floor["value"] if floor else None,
        "blocks": compared.get("blocks"),
        "stop": (record["blocks"] or {}).get("stop"),
        "record": shown,
    }


def skipped(name: str, rule: str, reason: str) -> dict[str, Any]:
    """A change for which there was nothing to measure."""
    return {"name": name, "status": "skipped", "verdict": None, "rule": rule, "reason": reason, "record": None}


def worth(name: str, then: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """A kept change left out of the final stack: log-ratios of its own criterion when it came in, and now."""
    figure = then["criterion"]
    line = {key: now[key] for key in ("status", "verdict", "rule", "reason", "record", "floor")}
    line = {"name": name, "criterion": figure, "then": then[figure], "now": now[figure], **line}
    if now[figure] is None:
        return line | {"interaction": None, "named": None}
    interaction = now[figure]["estimate"] - then[figure]["estimate"]
    return line | {"interaction": interaction, "named": _named(interaction, now["floor"])}


def told(line: dict[str, Any]) -> str:
    """A change left out, for people."""
    change = line["name"].removeprefix("without-")
    if line.get("now") is None:
        return f"{change} left out: {line['reason']}"
    figures = f"{percent(line['now'])} in the final stack, {percent(line['then'])} when it came in"
    return f"{change} is worth {line['criterion']} {figures}{'; it ' + line['named'] if line['named'] else ''}"


def percent(ratio: dict[str, float | None] | None) -> str:
    """A log-ratio with its interval, for people."""
    if ratio is None:
        return "-"
    low, high = ("?" if ratio[end] is None else f"{expm1(ratio[end]):+.1%}" for end in ("low", "high"))  # type: ignore[arg-type]
    assert ratio["estimate"] is not None
    return f"{expm1(ratio['estimate']):+.1%} [{low}, {high}]"


def _deciding(figure: str, compared: dict[str, Any]) -> dict[str, float | None] | None:
    """The interval that a verdict reads: accept length's is the bootstrap's."""
    if not compared:
        return None
    interval: dict[str, float | None] = compared[figure]["bootstrap" if figure == "accept" else "always_valid"]
    return interval


def _named(interaction: float, floor: float) -> str | None:
    """In words, where it is above the floor."""
    if abs(interaction) <= log1p(floor):
        return None
    how = "less" if interaction > 0 else "more"
    return f"gains {expm1(abs(interaction)):.1%} {how} among the others than when it came in"
