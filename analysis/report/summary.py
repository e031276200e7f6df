"""What a study amounts to, before anything else: how many of what, and how far the best has come from the start."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from analysis.ledger import lines
from analysis.report.markup import figure, join, tag

if TYPE_CHECKING:
    from markupsafe import Markup

    from analysis.dossier import Filed, Study

SHOWN = (
    ("mean_tpot_ms", "mean TPOT", 3, " ms"),
    ("step_ms", "step time", 3, " ms"),
    ("accept_length", "accept length", 2, ""),
    ("output_tok_s", "output", 1, " tok/s"),
)
"""Figure, its name, digits, unit."""


def summary(study: Study) -> Markup:
    cells = Counter(cell.record["status"] for cell in study.cells)
    decisions = Counter(line.verdict or line.status for line in lines(study))
    tiles = [_tile(count, f"cells: {status}") for status, count in sorted(cells.items(), reverse=True)]
    tiles += [_tile(count, f"decisions: {verdict}") for verdict, count in sorted(decisions.items())]
    notes = [f"Being measured right now: {', '.join(study.running)}."] if study.running else []
    notes += [f"{study.superseded} earlier attempts were replaced by later ones."] if study.superseded else []
    return tag("section", tag("ul", *tiles, class_="tiles"), progress(study), *(tag("p", text) for text in notes))


def progress(study: Study) -> Markup | None:
    """From the first baseline to where a campaign ended."""
    best = study.campaign and study.campaign["best"] and study.cell(study.campaign["best"]["cell"])
    base = study.cell("base")
    if not (best and base and best.record["metrics"] and base.record["metrics"]):
        return None
    kept = ", ".join(study.campaign["kept"]) if study.campaign else ""
    return join([tag("p", f"Kept, in this order: {kept or 'nothing'}."), tag("p", *_changes(base, best))])


def _changes(base: Filed, best: Filed) -> list[str]:
    parts: list[str] = []
    simulated = any(one.record["metrics"]["accept_source"] == "simulated" for one in (base, best))
    for key, name, digits, unit in SHOWN:
        before, after = (
            figure(one.record["metrics"][key], digits, unit, of=f"{one.name}/{key}") for one in (base, best)
        )
        told = f"simulated {name}" if simulated and key == "accept_length" else name
        parts += [" \N{MIDDLE DOT} " if parts else "", f"{told} ", before, " to ", after]
    return parts


def _tile(count: int, word: str) -> Markup:
    return tag("li", tag("b", str(count)), word)
