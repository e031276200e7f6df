"""The decision log: one card per decision in the order in which they were made, negatives among them.

The surprise: a change that came to nothing takes as much room as one that was kept. What was tried, why it was thought
to help and what spoke against it is the part that nobody can find out from the final configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.ledger import FIGURES, Ratio, lines
from analysis.report.forest import LABELS
from analysis.report.markup import figure, join, tag
from analysis.report.table import badge, facts, gates, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from markupsafe import Markup

    from analysis.dossier import Filed, Study
    from analysis.ledger import Line


def log(study: Study) -> Markup | None:
    decisions = [*lines(study)]
    filed = {one.shown: one for one in (*study.decisions, *study.cells)}
    parts: list[Markup] = [card(line, filed[line.evidence]) for line in decisions]
    if study.campaign:
        parts += [skipped(change) for change in study.campaign["changes"] if change["record"] is None]
    if not parts:
        return None
    return tag("section", tag("h3", "Decisions"), negatives(decisions), *parts, worth(study))


def negatives(decisions: Sequence[Line]) -> Markup | None:
    """What did not stay, in one sentence."""
    dropped = [f"{line.name} ({line.verdict or line.status})" for line in decisions if line.verdict != "keep"]
    return tag("p", f"Not kept: {', '.join(dropped)}.", class_="soft") if dropped else None


def card(line: Line, filed: Filed) -> Markup:
    word = line.verdict or line.status
    known = {
        "change": "; ".join(line.change) or "none: an A/A",
        "hypothesis": line.hypothesis,
        "class": declared(line),
        "against": line.baseline,
        **{LABELS[name]: ratio(line, name) for name in FIGURES},
        "detectable": figure(100 * line.mde, 2, " %", of="mde") if line.mde is not None else None,
        "A/A floor": figure(100 * line.floor, 2, " %", of="floor") if line.floor is not None else None,
        "blocks": str(line.blocks) if line.blocks else None,
        "gates": gates(filed.record),
        "figures": None if line.origin == "measured" else line.origin,
        "evidence": tag("a", line.evidence, href=line.evidence),
    }
    head = tag("header", tag("span", line.name, class_="name"), badge(line.verdict, line.status))
    rule = tag("p", tag("b", line.rule), f": {said(line.rule, line.reason)}")
    return tag("article", head, rule, facts(known), class_=word, data_decision=line.name)


def said(rule: str, reason: str) -> str:
    """A reason often begins with the word of its rule, which stands before it already."""
    return reason.removeprefix(f"{rule.rpartition(':')[2]}: ")


def declared(line: Line) -> str:
    """The author's reason, unless the change names it already."""
    if line.declared is None:
        return line.class_
    told = any(line.declared in part for part in line.change)
    return f"{line.class_}, rounding declared" + ("" if told else f": {line.declared}")


def ratio(line: Line, name: str) -> Markup | None:
    """Shown in per cent; its estimate and ends are on record as logarithms, and as such in the page's data."""
    value: Ratio | None = getattr(line, name)
    if value is None:
        return None
    decides = " (decides)" if line.criterion == name else ""
    return join([tag("data", str(value), value=repr(value.estimate), data_of=name), decides])


def skipped(change: Mapping[str, Any]) -> Markup:
    """A change for which there was nothing to measure has no record but the campaign's own line."""
    word = change["verdict"] or change["status"]
    head = tag("header", tag("span", change["name"], class_="name"), badge(change["verdict"], change["status"]))
    return tag("article", head, tag("p", tag("b", change["rule"]), f": {change['reason']}"), class_=word)


def worth(study: Study) -> Markup | None:
    """What each kept change is worth in the final stack."""
    left_out = (study.campaign or {}).get("leave_one_out")
    if not left_out:
        return None
    return join([tag("h3", "Leaving one out"), table([*map(worth_row, left_out)])])


def worth_row(entry: Mapping[str, Any]) -> dict[str, str]:
    effects = dict(_effects(entry))
    return {
        "change": entry["name"].removeprefix("without-"),
        "criterion": LABELS.get(entry.get("criterion") or "", ""),
        "when it came in": effects.get("then", ""),
        "in the final stack": effects.get("now", ""),
        "interaction": entry.get("named") or ("within the floor" if "now" in effects else entry["reason"]),
    }


def _effects(entry: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for when in ("then", "now"):
        if entry.get(when):
            yield when, str(Ratio(**entry[when]))
