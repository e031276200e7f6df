"""How many rows of each request the target verifies: expected tokens per second, maximised without a bias.

Tokens are expected from survival, the product of a request's confidences up to a row, so taking the best rows of all
requests first always takes prefixes. The surprise is what a planner must not do. A confidence is computed from the
drafts before it; whether a draft is verified may therefore depend on confidences up to its own row, and on none that
its own value has shaped. The causal planner stops at the first row that does not pay. The global one looks at all rows,
but counts on confidences of an earlier step, and uses this step's only to share the count out.

Measured step times rise in stairs, one for each tile of rows, and a search that stops at the first row that does not
pay would stop at the first stair. So the causal planner searches under the convex curve below the stairs, where the
first peak is the only one, and then goes on to the end of the stair it is on.
"""

from __future__ import annotations

from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from ling_runtime.speculation.dspark.times import Times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ling_runtime.speculation.dspark.cost import CostTable
    from ling_runtime.speculation.interface import Reads

    Survival = Sequence[Sequence[float]]
    """By request and draft: the probability that this draft and all before it are accepted."""

LEAST = 1e-6
"""No row is given to a draft that survives less often."""

FREE = 0.005
"""A relative rise of the step's time that is taken for none."""

Scheduler = Literal["causal", "global"]


class Planner(Protocol):
    reads: ClassVar[Reads]

    def lengths(self, slots: Sequence[int], confidence: Sequence[Sequence[float]]) -> tuple[int, ...]:
        """Rows of each request, 1..g + 1, from this step's calibrated confidences [B][g]."""

    def forget(self, slot: int) -> None:
        """The slot's next request is another one."""


def planner_for(scheduler: Scheduler, cost: CostTable) -> Planner:
    """Where rows cost nothing every row is verified, and nothing is computed."""
    if cost.flat:
        return VerifyAll()
    return CausalPlanner(cost) if scheduler == "causal" else GlobalPlanner(cost)


class VerifyAll:
    reads: ClassVar[Reads] = "nothing"

    def lengths(self, slots: Sequence[int], confidence: Sequence[Sequence[float]]) -> tuple[int, ...]:  # noqa: ARG002
        return tuple(len(row) + 1 for row in confidence)

    def forget(self, slot: int) -> None:
        pass


class CausalPlanner:
    reads: ClassVar[Reads] = "this"

    def __init__(self, cost: CostTable) -> None:
        self._times = Times(cost)

    def lengths(self, slots: Sequence[int], confidence: Sequence[Sequence[float]]) -> tuple[int, ...]:  # noqa: ARG002
        rows = survival(confidence)
        times = self._times.of(len(rows), len(rows[0]))
        return allocate(rows, with_free_rows(causal_count(rows, times.floor), times.real))

    def forget(self, slot: int) -> None:
        pass


class GlobalPlanner:
    """Counts on what each slot's request was confident of in its last step; on everything where it had none."""

    reads: ClassVar[Reads] = "earlier"

    def __init__(self, cost: CostTable) -> None:
        self._times = Times(cost)
        self._last: dict[int, Sequence[float]] = {}

    def lengths(self, slots: Sequence[int], confidence: Sequence[Sequence[float]]) -> tuple[int, ...]:
        now = survival(confidence)
        certain = [1.0] * len(now[0])
        times = self._times.of(len(now), len(certain))
        count = best_count([self._last.get(slot, certain) for slot in slots], times.real)
        self._last.update(zip(slots, now, strict=True))
        return allocate(now, count)

    def forget(self, slot: int) -> None:
        self._last.pop(slot, None)


def survival(confidence: Sequence[Sequence[float]]) -> Survival:
    return [list(accumulate(row, mul)) for row in confidence]


def causal_count(rows: Survival, times: Sequence[float]) -> int:
    """The paper's scheduler: rows are admitted best first, up to the first that does not raise tokens per second.

    `times[k]` are the seconds of a step with k rows beyond one per request; so many is also what is returned.
    """
    tokens = float(len(rows))
    best = tokens / times[0]
    for count, (alive, _, _) in enumerate(_best_first(rows)):
        tokens += alive
        rate = tokens / times[count + 1]
        if rate <= best:
            return count
        best = rate
    return len(times) - 1


def with_free_rows(count: int, times: Sequence[float]) -> int:
    """`count` and the rows after it that take no time."""
    limit = (1 + FREE) * times[count]
    while count + 1 < len(times) and times[count + 1] <= limit:
        count += 1
    return count


def best_count(rows: Survival, times: Sequence[float]) -> int:
    """The number of rows beyond one per request at which tokens per second are highest, the smallest if several are."""
    counted = sorted((alive for row in rows for alive in row if alive >= LEAST), reverse=True)
    tokens = accumulate(counted, initial=float(len(rows)))
    rates = [total / times[extra] for extra, total in enumerate(tokens)]
    return rates.index(max(rates))


def allocate(rows: Survival, count: int) -> tuple[int, ...]:
    """`count` rows beyond one per request to the best there are; among equals the earlier row, then the first request.

    A row that survives less often than `LEAST` gets none, so some of the count may be left over.
    """
    lengths = [1] * len(rows)
    for alive, _, request in _best_first(rows)[:count]:
        lengths[request] += alive >= LEAST
    return tuple(lengths)


def _best_first(rows: Survival) -> list[tuple[float, int, int]]:
    """(survival, draft, request), best first."""
    every = [(alive, draft, request) for request, row in enumerate(rows) for draft, alive in enumerate(row)]
    return sorted(every, key=lambda one: (-one[0], one[1], one[2]))
