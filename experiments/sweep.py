"""Axes of a preset as cells: a grid of all combinations, and lists that move together (zip).

The surprise: an axis is an override, not a key of the schema, so that a group (`speculation`) or an addition (`+env.A`)
can be one. Every combination is composed and checked before the first is measured, like any other cell.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from experiments.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MOST = 4096
"""Cells of one preset: more are a mistake in its axes."""
BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
"""Texts that Hydra takes as they are."""
WORDS = ("true", "false", "null", "inf", "nan")


@dataclass(frozen=True, kw_only=True)
class SweepSpec:
    grid: dict[str, list[Any]] = field(default_factory=dict)
    """By override: its values, each with each of the other axes'."""
    zip: dict[str, list[Any]] = field(default_factory=dict)
    """By override: its values, the first with the first of the other lists, and so on."""


@dataclass(frozen=True, kw_only=True)
class SearchSpec:
    cells: int = 0
    """Budget; 0: no search, all cells of the sweep are measured."""
    seconds: float | None = None
    """Budget, checked between cells."""
    metric: Literal["criterion", "mean_tpot_ms", "median_tpot_ms", "step_ms"] = "criterion"
    """What is to be small, among the cells that pass their gates; criterion: log-ratio to the baseline, as an A/B's."""
    seed: int = 1


def check_search(search: SearchSpec) -> None:
    """Raises ConfigError."""
    for key, value in {"search.cells": search.cells, "search.seed": search.seed}.items():
        if value < 0:
            raise ConfigError(key, f"{value} is too small; allowed: 0 and more")
    if search.seconds is not None and search.seconds <= 0:
        raise ConfigError("search.seconds", f"{search.seconds:g} is no budget; allowed: above 0, or null")


@dataclass(frozen=True)
class Axis:
    """Values that are chosen by one number: of one key, of the zipped ones, or the cells of a list."""

    name: str
    rows: tuple[tuple[str, ...], ...]
    """Overrides of each value."""
    ordered: bool
    """Neighbouring numbers mean neighbouring values."""


def axes(cells: Sequence[Sequence[str]], sweep: SweepSpec) -> list[Axis]:
    """`cells` are the outermost; of the sweep the last moves fastest. Raises ConfigError."""
    found = [Axis("cells", tuple(tuple(cell) for cell in cells), ordered=False)] if cells else []
    if sweep.zip:
        found.append(linked(sweep.zip))
    for key, values in sweep.grid.items():
        if not values:
            raise ConfigError(f"sweep.grid.{key}", "has no values")
        found.append(Axis(key, tuple((override(key, value),) for value in values), ordered=is_ordered(values)))
    keys = [*sweep.zip, *sweep.grid]
    if twice := {key for key in keys if keys.count(key) > 1}:
        raise ConfigError("sweep", f"{', '.join(sorted(twice))} is an axis of zip and of grid")
    return found


def linked(lists: Mapping[str, Sequence[Any]]) -> Axis:
    lengths = {key: len(values) for key, values in lists.items()}
    if len({*lengths.values()}) != 1 or 0 in lengths.values():
        counts = ", ".join(f"{key} has {count}" for key, count in lengths.items())
        raise ConfigError("sweep.zip", f"linked lists need one length, and not 0: {counts}")
    rows = zip(*([override(key, value) for value in values] for key, values in lists.items()), strict=True)
    return Axis("+".join(lists), tuple(rows), ordered=all(map(is_ordered, lists.values())))


def combinations(found: Sequence[Axis]) -> list[list[str]]:
    """Overrides of every cell, in order. Raises ConfigError."""
    count = 1
    for axis in found:
        count *= len(axis.rows)
    if count > MOST:
        raise ConfigError("sweep", f"makes {count} cells; allowed: up to {MOST}")
    return [list(itertools.chain(*rows)) for rows in itertools.product(*(axis.rows for axis in found))] if found else []


def override(key: str, value: Any) -> str:
    return f"{key}={written(value)}"


def written(value: Any) -> str:
    """In Hydra's grammar."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return value if BARE.fullmatch(value) and value.lower() not in WORDS else quoted(value)
        case list():
            return f"[{','.join(map(written, value))}]"
        case dict():
            return f"{{{','.join(_pairs(value))}}}"
        case _:
            return str(value)


def quoted(text: str) -> str:
    """Hydra's grammar unescapes a quote, and backslashes before one."""
    return "'" + re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), text) + "'"


def is_ordered(values: Sequence[Any]) -> bool:
    """Numbers that rise or fall."""
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in values):
        return False
    return list(values) in (sorted(values), sorted(values, reverse=True))


def _pairs(value: Mapping[str, Any]) -> Iterator[str]:
    return (f"{key}:{written(one)}" for key, one in value.items())
