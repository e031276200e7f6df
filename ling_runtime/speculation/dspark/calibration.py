"""Making confidences mean what they say: sequential temperature scaling, and the figures that show it.

One temperature per draft position, fitted from the first to the last, each so that the product of all confidences up to
its position is calibrated. The surprise: labels are cumulative (is everything up to here right?) and every step counts
at every position, so a position is fitted for the product that the planner uses and not for its own conditional.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

BINS = 15
GRID = torch.logspace(-1, 1, 41, dtype=torch.float64)
_EDGE = 1e-8


@dataclass(frozen=True, kw_only=True)
class Fit:
    """`temperatures` [g], and the calibration error of the products up to each position before and after."""

    temperatures: tuple[float, ...]
    ece_before: tuple[float, ...]
    ece_after: tuple[float, ...]


@dataclass(frozen=True)
class Bin:
    """One row of a reliability table; predicted and observed are means over `count` steps."""

    low: float
    high: float
    count: int
    predicted: float
    observed: float


def confidences(raw: Tensor, temperatures: Sequence[float]) -> Tensor:
    """raw [..., g] -> probabilities that a draft is accepted given that those before it were, fp64."""
    return torch.sigmoid(raw.double() / torch.tensor(temperatures, dtype=torch.float64, device=raw.device))


def fit(raw: Tensor, correct: Tensor) -> Fit:
    """Temperatures for raw [n, g]; correct [n, g] is 1 while the drafts up to there agree with the target."""
    alive = torch.ones(len(raw), dtype=torch.float64)
    temperatures, after = [], []
    for logits, labels in zip(raw.double().unbind(1), correct.unbind(1), strict=True):
        products = [alive * torch.sigmoid(logits / temperature) for temperature in GRID]
        errors = [expected_error(product, labels) for product in products]
        best = errors.index(min(errors))  # the first of equals: the lowest temperature
        alive = products[best]
        temperatures.append(float(GRID[best]))
        after.append(errors[best])
    identity = [1.0] * raw.shape[1]
    return Fit(temperatures=tuple(temperatures), ece_before=errors_of(raw, correct, identity), ece_after=tuple(after))


def errors_of(raw: Tensor, correct: Tensor, temperatures: Sequence[float]) -> tuple[float, ...]:
    """Expected calibration error of the product up to each position."""
    products = confidences(raw, temperatures).cumprod(dim=1)
    return tuple(expected_error(p, y) for p, y in zip(products.unbind(1), correct.unbind(1), strict=True))


def conditional_errors_of(raw: Tensor, correct: Tensor, temperatures: Sequence[float]) -> tuple[float, ...]:
    """Expected calibration error of each position's own confidence, over the steps that reached it."""
    reached = torch.cat([torch.ones_like(correct[:, :1]), correct[:, :-1]], dim=1).bool()
    columns = zip(confidences(raw, temperatures).unbind(1), correct.unbind(1), reached.unbind(1), strict=True)
    return tuple(expected_error(p[seen], y[seen]) for p, y, seen in columns)


def expected_error(predicted: Tensor, observed: Tensor) -> float:
    """Mean distance of predicted and observed over 15 bins of equal width, weighted by the steps in each."""
    table = reliability(predicted, observed)
    total = sum(row.count for row in table)
    return sum(row.count / total * abs(row.predicted - row.observed) for row in table)


def reliability(predicted: Tensor, observed: Tensor, bins: int = BINS) -> tuple[Bin, ...]:
    """The bins that hold something, for predicted [n] in [0, 1] and observed [n] of 0 and 1."""
    p = predicted.double().clamp(_EDGE, 1 - _EDGE)
    index = (p * bins).floor().long().clamp(max=bins - 1)
    counts = torch.bincount(index, minlength=bins)
    said = torch.bincount(index, weights=p, minlength=bins) / counts
    seen = torch.bincount(index, weights=observed.double(), minlength=bins) / counts
    rows = zip(counts.tolist(), said.tolist(), seen.tolist(), strict=True)
    return tuple(Bin(i / bins, (i + 1) / bins, n, p, y) for i, (n, p, y) in enumerate(rows) if n)
