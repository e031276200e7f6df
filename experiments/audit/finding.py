"""One thing that the audit has to say about a launch, with where it is known from and what to do about it.

The surprise: severity says what becomes of the launch, not how bad the mistake is. An error is what the engine would
refuse or what makes the cell's numbers impossible; a no-op starts without a murmur, and so is only a warning.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

Severity = Literal["error", "warning", "note"]

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
"""Worst first."""


@dataclass(frozen=True)
class Finding:
    code: str
    """One word with dashes; docs/audit.md has a row for each."""
    severity: Severity
    subject: str
    """The flag, variable or key that it is about, as its author wrote it."""
    reason: str
    source: str
    """Where it is known from, in words that mean something to a reader elsewhere."""
    remedy: str

    def to_json(self) -> dict[str, str]:
        return asdict(self)


def errors(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(one for one in findings if one.severity == "error")


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Each once, in the order of the rules within a severity."""
    return tuple(sorted(dict.fromkeys(findings), key=lambda one: SEVERITIES.index(one.severity)))
