"""What the server counts: step times and accept length since the last flush, tokens and requests since the start.

The surprise: a step's time is not the executor's alone. It runs from the end of the previous step to the hand-over of
this step's tokens, so with one request running it is what the client measures too, and the two can be held against
each other.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

STEP_EDGES_MS = tuple(round(0.25 * 2 ** (i / 4), 4) for i in range(49))
"""0.25 ms to 1.024 s, four buckets to an octave: a bucket is 19 % wide."""

LATENCY_EDGES_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Histogram:
    """Counts between ascending edges; bucket i holds values up to edge i, and the last one those beyond every edge."""

    def __init__(self, edges: tuple[float, ...]) -> None:
        self.edges = edges
        self.buckets = [0] * (len(edges) + 1)
        self.count = 0
        self.total = 0.0

    def record(self, value: float) -> None:
        self.buckets[bisect_left(self.edges, value)] += 1
        self.count += 1
        self.total += value


@dataclass
class SinceFlush:
    """The measured window: everything here starts anew with /flush_cache."""

    steps_ms: Histogram = field(default_factory=lambda: Histogram(STEP_EDGES_MS))
    verify_rows: int = 0
    """Requests times decode steps."""
    accepted: int = 0
    """Correct drafts plus one bonus token per row, tokens dropped after a stop included."""

    def accept_length(self) -> float | None:
        return self.accepted / self.verify_rows if self.verify_rows else None

    def steps_json(self) -> dict[str, object]:
        steps = self.steps_ms
        return {
            "count": steps.count,
            "total_s": steps.total / 1e3,
            "bucket_edges_ms": list(steps.edges),
            "buckets": list(steps.buckets),
        }


@dataclass
class Lifetime:
    """Prometheus counters: they only grow."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    requests: int = 0
    aborted_requests: int = 0
    ttft_s: Histogram = field(default_factory=lambda: Histogram(LATENCY_EDGES_S))
    latency_s: Histogram = field(default_factory=lambda: Histogram(LATENCY_EDGES_S))


class Statistics:
    def __init__(self) -> None:
        self.window = SinceFlush()
        self.lifetime = Lifetime()

    def flush(self) -> None:
        self.window = SinceFlush()
