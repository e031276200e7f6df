"""What a run in MLflow says of itself in words: the verdict, the figures that it rests on, and where the record is.

Markdown, as the store shows it above a run's numbers. The surprise: everything that comes from a record is escaped,
for a hypothesis may hold an asterisk and a log's line anything.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from analysis.ledger import FIGURES, lines
from analysis.records import reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from analysis.dossier import Filed, Study

    Record = Mapping[str, Any]

SHOWN = {"accept length": ("accept_length", 2), "step ms": ("step_ms", 3), "mean TPOT ms": ("mean_tpot_ms", 3)}
SHOWN |= {"tok/s": ("output_tok_s", 1)}
HEADINGS = ("run", "verdict", *SHOWN, "accuracy", "reason")


def of_record(record: Record, links: Mapping[str, str]) -> str:
    """A cell's or a decision's. `links`: text to place."""
    verdict = f"**{record['verdict'] or record['status']}** ({plain(record['rule'])}): {plain(_reason(record))}"
    hypothesis = record.get("hypothesis")
    parts = [verdict, f"Hypothesis: {plain(hypothesis)}" if hypothesis else "", _figures(record), _linked(links)]
    return "\n\n".join(part for part in parts if part)


def of_call(study: Study, links: Mapping[str, str]) -> str:
    """All cells and decisions of one call, as the parent of their runs."""
    parts = []
    if study.campaign:
        parts.append(f"Kept, in this order: {plain(', '.join(study.campaign['kept']) or 'nothing')}")
    decided = [[line.name, line.verdict or line.status, *_ratios(line), line.reason] for line in lines(study)]
    if decided:
        parts.append(_table(("decision", "verdict", "step time", "TPOT", "accept", "reason"), decided))
    if study.cells:
        parts.append(_table(HEADINGS, [_row(cell) for cell in study.cells]))
    return "\n\n".join([*parts, _linked(links)])


def plain(text: str) -> str:
    """Text that Markdown takes for text."""
    return re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", " ".join(text.split()))


def _reason(record: Record) -> str:
    return reason(dict(record)) or "no reason on record"


def _ratios(line: Any) -> Iterator[str]:
    return (str(getattr(line, figure) or "-") for figure in FIGURES)


def _figures(record: Record) -> str:
    measured, task = record.get("metrics"), record.get("task") or {}
    if not measured:
        return ""
    shown = [f"{name} {_figure(measured, key, digits)}" for name, (key, digits) in SHOWN.items()]
    accuracy = [f"accuracy {task['accuracy']:.3f}"] if task else []
    return ", ".join(shown + accuracy)


def _row(cell: Filed) -> list[str]:
    record = cell.record
    measured, task = record.get("metrics") or {}, record.get("task") or {}
    figures = [_figure(measured, key, digits) if measured else "" for key, digits in SHOWN.values()]
    accuracy = f"{task['accuracy']:.3f}" if task else ""
    return [cell.name, record["verdict"] or record["status"], *figures, accuracy, _reason(record)]


def _figure(measured: Record, key: str, digits: int) -> str:
    forced = key == "accept_length" and measured.get("accept_source") == "simulated"
    return f"{measured[key]:.{digits}f}" + " simulated" * forced


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = [" | ".join(headings), " | ".join("---" for _ in headings)]
    return "\n".join(f"| {row} |" for row in [*head, *(" | ".join(map(plain, row)) for row in rows)])


def _linked(links: Mapping[str, str]) -> str:
    return ", ".join(f"[{text}]({place})" for text, place in links.items())
