"""A sweep of depths as somebody printed it: a table of draft steps, window, accept length and mean time per token.

The surprise: a printed figure has an uncertainty too. 1.51 stands for anything that rounds to it, and a conclusion that
its last digit decides is none.
"""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.economics import Point
from analysis.records import RecordError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import numpy as np

COLUMNS = ("steps", "tokens", "accept", "tpot")


@dataclass(frozen=True, kw_only=True)
class Printed:
    """A row of a table: each figure with the value of half its last digit."""

    depth: int
    accept: tuple[float, float]
    tpot_ms: tuple[float, float]

    @property
    def algorithm(self) -> str:
        return "nextn" if self.depth else "none"

    @property
    def name(self) -> str:
        return f"nextn-{self.depth}-{self.depth + 1}" if self.depth else "none"

    def point(self, draw: np.random.Generator | None) -> Point:
        accept, tpot = (_within(figure, draw) for figure in (self.accept, self.tpot_ms))
        return Point(depth=self.depth, forwards=self.depth, step_ms=accept * tpot, accept=accept)

    def acceptance(self, draw: np.random.Generator | None) -> None:  # noqa: ARG002 - a table has no positions
        return None


def from_table(path: Path) -> Iterator[Printed]:
    """Of a .json file a list of objects, else of comma-separated values with a heading. Raises RecordError."""
    for number, row in enumerate(rows(path), start=1):
        try:
            yield printed(row)
        except ValueError as error:
            raise RecordError(f"{path}: row {number}: {error}") from error


def rows(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: no table that can be read: {error}") from error
    if path.suffix != ".json":
        return list(csv.DictReader(text.splitlines()))
    try:
        found = json.loads(text, parse_float=str)
    except ValueError as error:
        raise RecordError(f"{path}: no JSON: {error}") from error
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise RecordError(f"{path}: no list of objects with {', '.join(COLUMNS)}")
    return found


def printed(row: Mapping[str, Any]) -> Printed:
    """Raises ValueError, which says what is wrong with the row."""
    missing = [column for column in COLUMNS if row.get(column) in (None, "")]
    if missing:
        raise ValueError(f"lacks {', '.join(missing)}; needed: {', '.join(COLUMNS)}")
    steps, tokens = count(row, "steps"), count(row, "tokens")
    if tokens != steps + 1:
        raise ValueError(f"{tokens} tokens are not {steps} steps and one")
    accept, tpot_ms = figure(row, "accept"), figure(row, "tpot")
    if not 1 <= accept[0] <= tokens:
        raise ValueError(f"accept={accept[0]:g} cannot come out of a window of {tokens}; allowed: 1 to {tokens}")
    if tpot_ms[0] <= 0:
        raise ValueError(f"tpot={tpot_ms[0]:g} is no time; allowed: milliseconds above 0")
    return Printed(depth=steps, accept=accept, tpot_ms=tpot_ms)


def count(row: Mapping[str, Any], column: str) -> int:
    text = str(row[column]).strip()
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{column}={text} is no number of tokens")
    return int(text)


def figure(row: Mapping[str, Any], column: str) -> tuple[float, float]:
    """The figure, and half of one in its last digit."""
    text = str(row[column]).strip()
    digits, _, exponent = text.lower().partition("e")
    try:
        value, power = float(text), int(exponent or 0)
    except ValueError:
        value, power = math.nan, 0
    if not math.isfinite(value):
        raise ValueError(f"{column}={text} is no number")
    return value, 0.5 * 10.0 ** (power - len(digits.partition(".")[2]))


def _within(figure: tuple[float, float], draw: np.random.Generator | None) -> float:
    value, half = figure
    return value if draw is None else float(draw.uniform(value - half, value + half))
