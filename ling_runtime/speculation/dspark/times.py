"""Step times in the form that planning needs: by the number of rows beyond one per request, for each size of a batch.

Beside them stands the largest convex curve below. Measured times rise in stairs, one for each tile of rows, and a
search that ends at the first row that does not pay needs a curve on which the first peak is the only one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ling_runtime.speculation.dspark.cost import CostTable


@dataclass(frozen=True)
class StepTimes:
    """Seconds by the number of rows beyond one per request, as they are and the largest convex curve below."""

    real: tuple[float, ...]
    floor: tuple[float, ...]


class Times:
    """Step times of a cost table, computed once for each shape of a batch."""

    def __init__(self, cost: CostTable) -> None:
        self._cost = cost
        self._known: dict[tuple[int, int], StepTimes] = {}

    def of(self, requests: int, drafts: int) -> StepTimes:
        shape = requests, drafts
        if shape not in self._known:
            counts = range(requests, requests * (drafts + 1) + 1)
            real = tuple(self._cost.step_time(requests, count) for count in counts)
            self._known[shape] = StepTimes(real, convex_floor(real))
        return self._known[shape]


def convex_floor(values: Sequence[float]) -> tuple[float, ...]:
    """The largest convex sequence that is nowhere above `values`."""
    corners: list[int] = []
    for x in range(len(values)):
        while len(corners) > 1 and _above(values, corners[-2], corners[-1], x):
            corners.pop()
        corners.append(x)
    floor = [values[0]]
    for low, high in pairwise(corners):
        slope = (values[high] - values[low]) / (high - low)
        floor += [values[low] + slope * step for step in range(1, high - low)] + [values[high]]
    return tuple(floor)


def _above(values: Sequence[float], low: int, middle: int, high: int) -> bool:
    """Whether the middle point lies above the line through the other two."""
    return (values[middle] - values[low]) * (high - low) > (values[high] - values[low]) * (middle - low)
