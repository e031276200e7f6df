"""How many rows of each request the target verifies: expected tokens per second, maximised without a bias.

Tokens are expected from survival, the product of a request's confidences up to a row, so taking the best rows of all
requests first always takes prefixes. The surprise is what a planner must not do. A confidence is computed from the
drafts before it; whether a draft is verified may therefore depend on confidences up to its own row, and on none that
its own value has shaped. The causal planner stops at the first row that does not pay. The global one looks at all rows,
but counts on confidences of an earlier step, and uses this step's only to share the count out.
"""

from __future__ import annotations

from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ling_runtime.speculation.dspark.cost import CostTable

    Survival = Sequence[Sequence[float]]
    """By request and draft: the probability that this draft and all before it are accepted."""

LEAST = 1e-6
"""The global planner never counts on a row that survives less often."""

Scheduler = Literal["causal", "global"]


class Planner(Protocol):
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
    def lengths(self, slots: Sequence[int], confidence: Sequence[Sequence[float]]) -> tuple[int, ...]:  # noqa: ARG002
        return tuple(len(row) + 1 for row in confidence)

    def forget(self, slot: int) -> None:
        pass


class CausalPlanner:
    def __init__(self, cost: CostTable) -> None:
        self._cost = cost

    def lengths(self, slots: Sequence[int], confidence: Sequence[Sequence[float]]) -> tuple[int, ...]:  # noqa: ARG002
        return causal_lengths(survival(confidence), self._cost)

    def forget(self, slot: int) -> None:
        pass


class GlobalPlanner:
    """Counts on what each slot's request was confident of in its last step; on everything where it had none."""

    def __init__(self, cost: CostTable) -> None:
        self._cost = cost
        self._last: dict[int, Sequence[float]] = {}

    def lengths(self, slots: Sequence[int], confidence: Sequence[Sequence[float]]) -> tuple[int, ...]:
        now = survival(confidence)
        certain = [1.0] * len(now[0])
        count = budget([self._last.get(slot, certain) for slot in slots], self._cost)
        self._last.update(zip(slots, now, strict=True))
        return allocate(now, count)

    def forget(self, slot: int) -> None:
        self._last.pop(slot, None)


def survival(confidence: Sequence[Sequence[float]]) -> Survival:
    return [list(accumulate(row, mul)) for row in confidence]


def causal_lengths(rows: Survival, cost: CostTable) -> tuple[int, ...]:
    """The paper's scheduler: admit rows best first, and stop at the first that does not raise tokens per second."""
    requests = len(rows)
    lengths, tokens = [1] * requests, float(requests)
    best = tokens / cost.step_time(requests, requests)
    for count, (alive, draft, request) in enumerate(_best_first(rows), start=requests + 1):
        tokens += alive
        rate = tokens / cost.step_time(requests, count)
        if rate <= best:
            break
        best, lengths[request] = rate, draft + 2
    return tuple(lengths)


def budget(rows: Survival, cost: CostTable) -> int:
    """The number of rows beyond one per request at which tokens per second are highest, the smallest if several are."""
    requests = len(rows)
    counted = sorted((alive for row in rows for alive in row if alive >= LEAST), reverse=True)
    tokens = accumulate(counted, initial=float(requests))
    rates = [total / cost.step_time(requests, requests + extra) for extra, total in enumerate(tokens)]
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
