"""Which depth of speculation pays, from one sweep: cost and gain of every added draft, and the optimum they predict.

Measured points and the two models (cost of a step, acceptance by position) are drawn again together, and each draw has
an optimum of its own; the interval is the range of depths that covers 95 of 100. The surprise: it can be one depth wide
although the fit is poor, because the optimum moves only where two depths nearly tie.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.economics import Acceptance, Cost, Point, Routing, added, best, between, fit_cost, predict
from analysis.sweep import forwards

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from analysis.economics import Added
    from analysis.sweep import Cell, Draw

DRAWS = 500
SEED = 1
BEYOND = 2
"""Depths past the deepest measured one to which predictions reach."""
COVERAGE = 0.95
BASE_FACTORS = (0.75, 0.5, 0.25)


@dataclass(frozen=True, kw_only=True)
class Optimum:
    depth: int
    low: int
    high: int
    shares: Mapping[int, float]
    """How often each depth was the best of a draw."""


@dataclass(frozen=True, kw_only=True)
class Moved:
    """The optimum where the base is multiplied, and where every added cost is."""

    factor: float
    smaller_base: int
    cheaper_draft: int


@dataclass(frozen=True, kw_only=True)
class Report:
    algorithm: str
    measured: tuple[Point, ...]
    predicted: tuple[Point, ...]
    added: tuple[Added, ...]
    cost: Cost
    acceptance: Acceptance
    measured_optimum: int
    optimum: Optimum
    moved: tuple[Moved, ...]
    plain: Point | None
    """Decoding without speculation, where the sweep has it."""

    @property
    def expected_optimum(self) -> int:
        """Predicted among the depths that were measured; `optimum` may lie beyond them."""
        depths = [point.depth for point in self.measured]
        return best(point for point in self.predicted if min(depths) <= point.depth <= max(depths)).depth

    @property
    def agrees(self) -> bool:
        """The prediction is within one draft of the measured optimum."""
        return abs(self.expected_optimum - self.measured_optimum) <= 1

    def to_json(self) -> dict[str, Any]:
        return {
            "algorithm": self.algorithm,
            "measured": [_figures(point) for point in self.measured],
            "predicted": [_figures(point) for point in self.predicted],
            "added": [{**vars(step), "pays": step.pays} for step in self.added],
            "cost_ms": _coefficients(self.cost),
            "gains_from_depth": self.acceptance.start,
            "gains": list(self.acceptance.gains),
            "measured_optimum": self.measured_optimum,
            "expected_optimum": self.expected_optimum,
            "predicted_optimum": {**vars(self.optimum), "shares": {str(k): v for k, v in self.optimum.shares.items()}},
            "agrees": self.agrees,
            "moved": [vars(move) for move in self.moved],
            "plain": _figures(self.plain) if self.plain else None,
        }


def breakeven(
    cells: Sequence[Cell],
    *,
    algorithm: str = "nextn",
    plain: Cell | None = None,
    routing: Routing | None = None,
    factors: Sequence[float] = BASE_FACTORS,
    draws: int = DRAWS,
) -> Report:
    """`cells`: one algorithm's, by depth. Raises ValueError for fewer than two depths."""
    points = [cell.point(None) for cell in cells]
    cost, acceptance, predicted = _models(cells, algorithm, routing, None)
    depths = {point.depth: point.forwards for point in predicted}
    return Report(
        algorithm=algorithm,
        measured=tuple(points),
        predicted=tuple(predicted),
        added=tuple(added(before, after) for before, after in pairwise(points)),
        cost=cost,
        acceptance=acceptance,
        measured_optimum=best(points).depth,
        optimum=_optimum(cells, algorithm, routing, best(predicted).depth, draws),
        moved=tuple(
            Moved(
                factor=factor,
                smaller_base=best(predict(cost.scaled(base=factor), acceptance, depths)).depth,
                cheaper_draft=best(predict(cost.scaled(added=factor), acceptance, depths)).depth,
            )
            for factor in factors
        ),
        plain=plain.point(None) if plain else None,
    )


def _models(
    cells: Sequence[Cell], algorithm: str, routing: Routing | None, seed: tuple[int, int] | None
) -> tuple[Cost, Acceptance, list[Point]]:
    """Fitted to the sweep as it was (seed None) or as it is drawn; every cell's draw is the same."""
    points = [cell.point(_draw(seed)) for cell in cells]
    acceptance = cells[-1].acceptance(_draw(seed)) or between(points)
    cost = fit_cost(points, routing)
    first = max(acceptance.start, 1)
    depths = {depth: forwards(algorithm, depth) for depth in range(first, points[-1].depth + BEYOND + 1)}
    return cost, acceptance, predict(cost, acceptance, depths)


def _optimum(cells: Sequence[Cell], algorithm: str, routing: Routing | None, depth: int, draws: int) -> Optimum:
    found = [best(_models(cells, algorithm, routing, (SEED, draw))[2]).depth for draw in range(draws)]
    low, high = np.quantile(found, ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2), method="closest_observation")
    shares = {best_depth: count / draws for best_depth, count in sorted(Counter(found).items())}
    return Optimum(depth=depth, low=int(low), high=int(high), shares=shares)


def _draw(seed: tuple[int, int] | None) -> Draw:
    return None if seed is None else np.random.default_rng(seed)


def _figures(point: Point) -> dict[str, float]:
    return {**vars(point), "rows": point.rows, "tpot_ms": point.tpot_ms, "tok_s": 1e3 / point.tpot_ms}


def _coefficients(cost: Cost) -> dict[str, Any]:
    names = ("base", *cost.columns)
    return {
        name: {"value": value, "interval": interval}
        for name, value, interval in zip(names, cost.values_ms, cost.intervals_ms, strict=True)
    }
