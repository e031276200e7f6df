"""Step time by requests and rows, with forced verify lengths, as an additive cost table.

Each number of requests and of rows is a cell; rounds visit all cells in an order of their own, so that a machine that
slows down slows all of them alike, and the first step of a visit does not count. Rows are probed on both sides of each
tile's edge, where time jumps. The surprise: the table is kept rising. A step with more rows is never cheaper, and a dip
that is noise would look like a gift to the planner.
"""

from __future__ import annotations

import random
import statistics
import time
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ling_runtime.calibration.session import Session
from ling_runtime.config import TILE
from ling_runtime.speculation.dspark.cost import AdditiveTable, Curve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from ling_runtime.calibration.collect import Progress
    from ling_runtime.executor.step import StepExecutor
    from ling_runtime.speculation.interface import Reads

    Cell = tuple[int, int]
    """Requests, and rows of all of them."""

NEW_TOKENS = 1024
"""After so many a batch starts anew from its prompts."""


@dataclass
class Forced:
    """A schedule that deals a number of rows out evenly."""

    rows: int
    packed = True
    reads: ClassVar[Reads] = "this"
    about = types.MappingProxyType({"schedule": "forced"})

    def lengths(self, slots: Sequence[int], confidence: Tensor) -> tuple[int, ...]:  # noqa: ARG002
        each, more = divmod(self.rows, len(slots))
        return tuple(each + (i < more) for i in range(len(slots)))

    def forget(self, slot: int) -> None:
        pass


class Batch:
    """As many requests as the largest cell, begun again when they have become long."""

    def __init__(self, executor: StepExecutor, prompts: Sequence[Sequence[int]]) -> None:
        self.forced = Forced(1)
        self._session = Session(executor, self.forced)
        self._prompts, self._window = prompts, executor.window
        self._room = min(NEW_TOKENS, executor.max_context - max(map(len, prompts)))
        self._slots: list[int] = []
        self._left = 0

    def visit(self, cell: Cell, steps: int) -> list[float]:
        """Seconds of `steps` steps, after one that does not count."""
        requests, self.forced.rows = cell
        if self._left < (steps + 1) * self._window:
            self._restart()
        times = []
        for _ in range(steps + 1):
            began = time.perf_counter()
            self._session.step(self._slots[:requests])
            times.append(time.perf_counter() - began)
            self._left -= self._window
        return times[1:]

    def _restart(self) -> None:
        for slot in self._slots:
            self._session.end(slot)
        self._slots = [self._session.start(prompt, self._room) for prompt in self._prompts]
        self._left = self._room


def profile(
    executor: StepExecutor,
    prompts: Sequence[Sequence[int]],
    requests: Sequence[int],
    *,
    rounds: int,
    steps: int,
    progress: Progress = lambda _: None,
) -> dict[Cell, float]:
    """Median seconds of each cell; a prompt for each request of the largest one. `progress` hears of each round."""
    batch = Batch(executor, prompts)
    cells = [(count, rows) for count in requests for rows in probed_rows(count, executor.window)]
    times: dict[Cell, list[float]] = {cell: [] for cell in cells}
    order = random.Random(0)
    for number in range(1, rounds + 1):
        order.shuffle(cells)
        for cell in cells:
            times[cell] += batch.visit(cell, steps)
        progress(number)
    return {cell: statistics.median(seconds) for cell, seconds in sorted(times.items())}


def probed_rows(requests: int, window: int) -> list[int]:
    """From one row each to the whole window each: edges of tiles, and powers of two, which other batches have too."""
    most = requests * window
    edges = range(TILE, most, TILE)
    probes = {requests, most, *edges, *(edge + 1 for edge in edges), *(1 << k for k in range(most.bit_length()))}
    return sorted(rows for rows in probes if requests <= rows <= most)


def table(seconds: Mapping[Cell, float]) -> AdditiveTable:
    """Least squares of bias + alpha(requests) + theta(rows), theta then made rising; alpha and theta start at 0."""
    requests = sorted({count for count, _ in seconds})
    rows = sorted({total for _, total in seconds})
    design = np.zeros((len(seconds), 1 + len(requests) + len(rows)))
    for i, (count, total) in enumerate(seconds):
        design[i, [0, 1 + requests.index(count), 1 + len(requests) + rows.index(total)]] = 1.0
    solution = np.linalg.lstsq(design, np.array(list(seconds.values())), rcond=None)[0]
    alpha = solution[1 : 1 + len(requests)]
    theta = rising(solution[1 + len(requests) :], design[:, 1 + len(requests) :].sum(axis=0))
    bias = solution[0] + alpha[0] + theta[0]
    by_requests, by_rows = (alpha - alpha[0]).tolist(), (theta - theta[0]).tolist()
    return AdditiveTable(float(bias), Curve(tuple(requests), tuple(by_requests)), Curve(tuple(rows), tuple(by_rows)))


def rising(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The nearest sequence that never falls, in weighted least squares: neighbours that fall are averaged."""
    groups: list[tuple[float, float, int]] = []  # mean, weight, length
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        group = (value, weight, 1)
        while groups and groups[-1][0] > group[0]:
            mean, heavy, length = groups.pop()
            total = heavy + group[1]
            group = ((mean * heavy + group[0] * group[1]) / total, total, length + group[2])
        groups.append(group)
    return np.repeat([mean for mean, _, _ in groups], [length for _, _, length in groups])


def cells_json(seconds: Mapping[Cell, float], cost: AdditiveTable) -> list[dict[str, Any]]:
    """What was measured beside what the table says."""
    return [
        {"requests": count, "rows": rows, "seconds": t, "table": cost.step_time(count, rows)}
        for (count, rows), t in seconds.items()
    ]


def shown(cells: Sequence[Mapping[str, Any]]) -> str:
    lines = [f"{c['requests']:>8}  {c['rows']:>4}  {1e3 * c['seconds']:11.3f}  {1e3 * c['table']:8.3f}" for c in cells]
    worst = max(abs(c["table"] / c["seconds"] - 1) for c in cells)
    heading = "requests  rows  measured ms  table ms"
    return "\n".join([heading, *lines, f"the table is within {worst:.1%} of every cell"])
