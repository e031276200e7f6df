"""Findings as people and programs read them: a table before a run, short lines on stderr when one starts, JSON.

The surprise: cells of a sweep mostly share their findings, so each is shown once, with the cells it is about.
"""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING, Any

from experiments.audit.finding import SEVERITIES, errors
from experiments.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from experiments.audit.finding import Finding
    from experiments.preparation import Plan

WIDTH = 118
INDENT = 9


def table(plans: Sequence[Plan]) -> Iterator[str]:
    """A finding is a line with its severity, code and subject, then its reason, source and remedy."""
    found = by_finding(plans)
    for finding, cells in found.items():
        yield f"{finding.severity:{INDENT}}{finding.code}: {finding.subject}{named(cells, plans)}"
        yield from wrapped(finding.reason)
        yield from wrapped(f"source: {finding.source}")
        yield from wrapped(f"remedy: {finding.remedy}")
    counts = {severity: sum(one.severity == severity for one in found) for severity in SEVERITIES}
    said = [f"{count} {severity}{'s' if count > 1 else ''}" for severity, count in counts.items() if count]
    yield f"audit: {', '.join(said) or 'nothing found'}"


def lines(plans: Sequence[Plan]) -> list[str]:
    return [
        f"{one.severity}: {one.code}: {one.subject}{named(cells, plans)}: {one.reason} ({one.remedy})"
        for one, cells in by_finding(plans).items()
    ]


def entries(plans: Sequence[Plan]) -> list[dict[str, Any]]:
    return [{**finding.to_json(), "cells": cells} for finding, cells in by_finding(plans).items()]


def announce(plans: Sequence[Plan]) -> None:
    """To stderr, before anything starts. Raises ConfigError where the study is strict about an error."""
    for text in lines(plans):
        print(text, file=sys.stderr)
    for plan in plans:
        if refusal := refused(plan):
            raise ConfigError(
                f"audit=strict: {refusal.subject}", f"{refusal.code}: {refusal.reason} ({refusal.remedy})"
            )


def refused(plan: Plan) -> Finding | None:
    """The first error that keeps a strict study from starting."""
    if plan.study.audit != "strict":
        return None
    return next((finding for item in plan.cells for finding in errors(item.findings)), None)


def by_finding(plans: Sequence[Plan]) -> dict[Finding, list[str]]:
    """Worst first; the cells of each."""
    cells: dict[Finding, list[str]] = {}
    for plan in plans:
        for item in plan.cells:
            for finding in item.findings:
                cells.setdefault(finding, []).append(f"{plan.study.study}/{item.cell.name}")
    return dict(sorted(cells.items(), key=lambda item: SEVERITIES.index(item[0].severity)))


def named(cells: Sequence[str], plans: Sequence[Plan]) -> str:
    """Nothing where it is all of them."""
    return "" if len(cells) == sum(len(plan.cells) for plan in plans) else f" ({', '.join(cells)})"


def wrapped(text: str) -> list[str]:
    indent = " " * INDENT
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False)
