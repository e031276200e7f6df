"""What one more draft costs and what it brings: the arithmetic of speculation depth, on plain numbers.

Time per token is step time over accept length. A further draft raises both, so it pays as long as accept length grows
by the larger share. The surprise: a smaller fixed base makes depth *less* attractive, for the same added cost is then a
larger share; only a cheaper added step moves the optimum deeper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

COVERAGE = 0.95
ALIKE = 0.1
"""Ratio of singular values under which two columns cannot be told apart by least squares."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One measured depth."""

    depth: int
    """Drafts per step."""
    forwards: int
    """Forwards of the draft model per step, the extend among them."""
    step_ms: float
    accept: float

    @property
    def rows(self) -> int:
        """The target verifies the drafts and the token they start from."""
        return self.depth + 1

    @property
    def tpot_ms(self) -> float:
        return self.step_ms / self.accept


@dataclass(frozen=True)
class Routing:
    """A mixture of experts, for which rows are not free: each brings experts that must be read."""

    experts: int
    top_k: int

    def distinct(self, rows: int) -> float:
        """Expected experts of a layer that some row uses, if rows choose independently and evenly."""
        return self.experts * (1 - (1 - self.top_k / self.experts) ** rows)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """step_ms = base + sum of coefficient times column; an interval is None where points are no more than unknowns."""

    columns: tuple[str, ...]
    values_ms: tuple[float, ...]
    """The base first."""
    intervals_ms: tuple[tuple[float, float] | None, ...]
    routing: Routing | None

    def at(self, rows: int, forwards: int) -> float:
        return self.values_ms[0] + self.added(rows, forwards)

    def added(self, rows: int, forwards: int) -> float:
        """All that is not base."""
        columns = [_column(name, rows, forwards, self.routing) for name in self.columns]
        return sum(value * column for value, column in zip(self.values_ms[1:], columns, strict=True))

    def scaled(self, *, base: float = 1.0, added: float = 1.0) -> Cost:
        """With the base and everything on top of it multiplied."""
        return replace(self, values_ms=(self.values_ms[0] * base, *(value * added for value in self.values_ms[1:])))


def fit_cost(points: Sequence[Point], routing: Routing | None = None) -> Cost:
    """Least squares. Raises ValueError for one depth alone.

    Where rows and forwards grow together, as in every NEXTN sweep, one coefficient stands for both.
    """
    work = "experts" if routing else "rows"
    for columns in ((work, "forwards"), (work,)):
        design = np.array([[1.0, *(_column(c, p.rows, p.forwards, routing) for c in columns)] for p in points])
        if len(points) > len(columns) and _told_apart(design):
            times = np.array([point.step_ms for point in points])
            values, intervals = _least_squares(design, times)
            return Cost(columns=columns, values_ms=values, intervals_ms=intervals, routing=routing)
    raise ValueError("a cost needs two depths at least")


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """Accept length by depth: what it is at the first depth known, and what each further draft adds."""

    start: int
    accept: float
    gains: tuple[float, ...]
    """Of drafts start + 1, start + 2, ...; each the share of steps that accept it and all before it."""

    def at(self, depth: int) -> float:
        """Beyond the last known gain, gains fall by their last ratio."""
        assert depth >= self.start
        known = self.gains[: depth - self.start]
        beyond = depth - self.start - len(known)
        ratio = min(self.gains[-1] / self.gains[-2], 1.0) if len(self.gains) > 1 and self.gains[-2] > 0 else 0.0
        last = self.gains[-1] if self.gains else 0.0
        return self.accept + sum(known) + sum(last * ratio**i for i in range(1, beyond + 1))


def between(points: Sequence[Point]) -> Acceptance:
    """From accept lengths measured at successive depths; a gap of several is filled evenly."""
    ordered = sorted(points, key=lambda point: point.depth)
    gains: list[float] = []
    for before, after in pairwise(ordered):
        added = after.depth - before.depth
        gains += [(after.accept - before.accept) / added] * added
    return Acceptance(start=ordered[0].depth, accept=ordered[0].accept, gains=tuple(gains))


def by_position(committed: Floats) -> Acceptance:
    """`committed` [W]: steps that committed 1, 2, ... W tokens. Shallower depths of the same drafts follow from it."""
    reached = committed[::-1].cumsum()[::-1] / committed.sum()
    return Acceptance(start=0, accept=1.0, gains=tuple(float(share) for share in reached[1:]))


@dataclass(frozen=True, kw_only=True)
class Added:
    """One more draft: what it brings and what it costs, as shares; it pays if the first is larger."""

    depth: int
    """After the addition."""
    gain: float
    """Of accept length, in tokens."""
    gain_share: float
    cost_share: float
    needed: float
    """The gain at which nothing is won or lost."""

    @property
    def pays(self) -> bool:
        return self.gain_share > self.cost_share


def added(before: Point, after: Point) -> Added:
    cost = after.step_ms / before.step_ms - 1
    gain = after.accept - before.accept
    return Added(
        depth=after.depth, gain=gain, gain_share=gain / before.accept, cost_share=cost, needed=cost * before.accept
    )


def predict(cost: Cost, acceptance: Acceptance, depths: Mapping[int, int]) -> list[Point]:
    """The points that the two models expect. `depths`: draft forwards by depth."""
    return [Point(depth=d, forwards=f, step_ms=cost.at(d + 1, f), accept=acceptance.at(d)) for d, f in depths.items()]


def best(points: Iterable[Point]) -> Point:
    """The least time per token; of equals the shallowest."""
    return min(points, key=lambda point: (point.tpot_ms, point.depth))


def _column(name: str, rows: int, forwards: int, routing: Routing | None) -> float:
    match name:
        case "rows":
            return float(rows)
        case "experts":
            assert routing
            return routing.distinct(rows)
        case _:
            return float(forwards)


def _told_apart(design: Floats) -> bool:
    """The columns besides the base, about their means and each in its own spread, differ enough."""
    columns = design[:, 1:] - design[:, 1:].mean(axis=0)
    spread = columns.std(axis=0)
    if not spread.all():
        return False
    singular = np.linalg.svd(columns / spread, compute_uv=False)
    return bool(singular[-1] >= ALIKE * singular[0])


def _least_squares(design: Floats, times: Floats) -> tuple[tuple[float, ...], tuple[tuple[float, float] | None, ...]]:
    values, *_ = np.linalg.lstsq(design, times, rcond=None)
    free = len(times) - design.shape[1]
    if free < 1:
        return tuple(map(float, values)), (None,) * len(values)
    variance = float(((times - design @ values) ** 2).sum()) / free
    errors = np.sqrt(variance * np.diag(np.linalg.inv(design.T @ design)))
    reach = float(stats.t.ppf((1 + COVERAGE) / 2, df=free)) * errors
    ends = [(float(v - r), float(v + r)) for v, r in zip(values, reach, strict=True)]
    return tuple(map(float, values)), tuple(ends)
