"""What the host has to spare when it runs ahead, step by step: how long it waited, and whether the device had to.

The wait ends when a step's tokens are there, with the next step queued behind it, so it is the time that the host's
loop could have taken longer at no cost. The surprise: a wait of zero is not yet a loss, since after the tokens the
device still has its extend pass; a step is `dry` only if all work was done when the next was queued.
"""

from __future__ import annotations

from typing import Any

from ling_runtime.statistics import Histogram

EDGES_MS = tuple(round(0.01 * 2 ** (i / 2), 4) for i in range(25))
"""0.01 to 41 ms, two buckets to an octave."""


class Slack:
    def __init__(self) -> None:
        self._waits_ms = Histogram(EDGES_MS)
        self._least_ms: float | None = None
        self._dry = 0

    def note(self, wait_ms: float, *, dry: bool) -> None:
        self._waits_ms.record(wait_ms)
        self._least_ms = wait_ms if self._least_ms is None else min(self._least_ms, wait_ms)
        self._dry += dry

    def report(self) -> dict[str, Any]:
        waits = self._waits_ms
        return {
            "count": waits.count,
            "total_s": waits.total / 1e3,
            "least_ms": self._least_ms,
            "dry": self._dry,
            "bucket_edges_ms": list(waits.edges),
            "buckets": list(waits.buckets),
        }
