"""Findings as people read them: a table before a run, short lines on stderr while one starts.

The surprise: cells of a sweep mostly share their findings, so each is shown once, with the cells it is about.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from experiments.audit.finding import SEVERITIES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from experiments.audit.finding import Finding

WIDTH = 118
INDENT = 9


def table(found: Mapping[str, Sequence[Finding]]) -> Iterator[str]:
    """`found` by cell. A finding is a line with its severity, code and subject, then its reason, source and remedy."""
    for finding, cells in by_finding(found).items():
        names = "" if len(cells) == len(found) else f" ({', '.join(cells)})"
        yield f"{finding.severity:{INDENT}}{finding.code}: {finding.subject}{names}"
        yield from wrapped(finding.reason)
        yield from wrapped(f"source: {finding.source}")
        yield from wrapped(f"remedy: {finding.remedy}")
    yield total(by_finding(found))


def line(finding: Finding) -> str:
    return f"{finding.severity}: {finding.code}: {finding.subject}: {finding.reason} ({finding.remedy})"


def total(findings: Mapping[Finding, Sequence[str]]) -> str:
    counts = {severity: sum(one.severity == severity for one in findings) for severity in SEVERITIES}
    said = [f"{count} {severity}{'s' if count > 1 else ''}" for severity, count in counts.items() if count]
    return f"audit: {', '.join(said) or 'nothing to say'}"


def by_finding(found: Mapping[str, Sequence[Finding]]) -> dict[Finding, list[str]]:
    """Worst first; the cells of each."""
    cells: dict[Finding, list[str]] = {}
    for name, findings in found.items():
        for finding in findings:
            cells.setdefault(finding, []).append(name)
    return dict(sorted(cells.items(), key=lambda item: SEVERITIES.index(item[0].severity)))


def wrapped(text: str) -> list[str]:
    indent = " " * INDENT
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False)
