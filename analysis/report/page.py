"""The page: studies one after the other, each from its conclusion down to its evidence.

The surprise: it holds no time of its own. It is a function of the records, so the same records make the same bytes, and
a page that differs is a difference in what was measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from analysis.report.cells import one_by_one, side_by_side
from analysis.report.log import log
from analysis.report.machine import environment
from analysis.report.markup import tag
from analysis.report.plots import CAPTIONS, plots
from analysis.report.style import CSS
from analysis.report.summary import summary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from analysis.dossier import Study

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Said to the browser: nothing is loaded and nothing is run, whatever a record may hold."""


def page(studies: Sequence[Study]) -> str:
    names = ", ".join(study.name for study in studies)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"Report: {names}"),
        tag("style", Markup(CSS)),  # noqa: S704 - a constant
    )
    links = [tag("a", study.name, href=f"#study-{k}") for k, study in enumerate(studies)]
    top = [tag("h1", f"Report: {names}"), tag("p", span(studies), class_="soft"), tag("nav", *links)]
    body = tag("body", *top, *(section(study, f"study-{k}") for k, study in enumerate(studies)))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def section(study: Study, anchor: str) -> Markup:
    return tag(
        "section",
        tag("h2", study.name),
        summary(study),
        log(study),
        side_by_side(study),
        figures(study),
        environment(study),
        one_by_one(study) if study.cells else None,
        id=anchor,
    )


def figures(study: Study) -> Markup | None:
    drawn = plots(study)
    if not drawn:
        return None
    parts = [tag("figure", plot, tag("figcaption", CAPTIONS[name])) for name, plot in drawn.items()]
    return tag("section", tag("h3", "Plots"), tag("div", *parts, class_="plots"))


def span(studies: Sequence[Study]) -> str:
    """How much was measured, and when."""
    records = [one.record for study in studies for one in (*study.cells, *study.decisions)]
    stamps = sorted(filter(None, (record.get(key) for record in records for key in ("started_utc", "ended_utc"))))
    when = f", measured from {stamps[0]} to {stamps[-1]}" if stamps else ""
    return f"{len(records)} records{when}"
