"""Tables, lists of facts and verdicts, as the page shows them.

The surprise: each cell of a table says its heading too, for on a phone a row is a card and there is no head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from analysis.report.markup import tag

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from markupsafe import Markup


def table(rows: Sequence[Mapping[str, str]]) -> Markup:
    """Headings are the first row's keys; plain strings are text."""
    head = tag("thead", tag("tr", *(tag("th", heading) for heading in rows[0])))
    body = [tag("tr", *(tag("td", content, data_heading=heading) for heading, content in row.items())) for row in rows]
    return tag("table", head, tag("tbody", *body))


def facts(entries: Mapping[str, str | None]) -> Markup:
    """A list of what is known, heading by heading."""
    known = [(heading, content) for heading, content in entries.items() if content]
    return tag("dl", *(part for heading, content in known for part in (tag("dt", heading), tag("dd", content))))


def gates(record: Mapping[str, Any]) -> str:
    """The passed ones as a count, the others by name; one that binds nothing here has not failed, it was looked at."""
    found = record.get("gates") or {}
    told = {"fail": ("FAILED", "differs (reported only)"), "not_run": ("NOT RUN", "not run")}
    bad = [f"{name} {told[one['status']][not one['required']]}" for name, one in found.items() if one["status"] in told]
    return ", ".join([f"{sum(one['status'] == 'pass' for one in found.values())} passed", *bad]) if found else ""


def badge(verdict: str | None, status: str) -> Markup:
    word = verdict or status
    return tag("span", word, class_=f"badge {word}")
