"""What a benchmark's requests say: accept length, step time, TPOT, throughput, as pure functions of counts and stamps.

The surprise: accept length is a ratio of sums over the measured requests and never an average the server kept, and a
speculative run without counts is an error and not "1.0".
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Literal

from experiments.errors import MeasurementError

AcceptSource = Literal["definition", "measured", "simulated"]

STEP_AGREEMENT = 0.03
"""Share by which the client's and the server's step time may differ before the cell is flagged."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One request: tokens n (the first from prefill), target decode steps v, seconds."""

    tokens: int
    steps: int | None
    ttft_s: float
    latency_s: float

    @property
    def decode_s(self) -> float:
        return self.latency_s - self.ttft_s


@dataclass(frozen=True, kw_only=True)
class Metrics:
    accept_length: float
    accept_source: AcceptSource
    accept_length_request_mean: float
    mean_tpot_ms: float
    median_tpot_ms: float
    step_ms: float
    server_step_ms: float | None
    mean_ttft_ms: float
    median_ttft_ms: float
    output_tok_s: float
    peak_tok_s: float
    requests: int
    output_tokens: int
    wall_s: float
    peak_low_tok_s: float | None = None
    """Of `peak_tok_s`, over all phases of its one-second cuts (analysis.peak)."""
    peak_high_tok_s: float | None = None
    verified_rows_per_step: float | None = None
    """Rows that the target computed for one request in one step: W, unless verification is scheduled."""
    committed_per_step: float | None = None
    """As the server counts it, tokens behind a stop included."""
    slack_ms: float | None = None
    """Mean time that the server's host, running ahead, waited for its device: what its loop has to spare a step."""
    dry_share: float | None = None
    """Of its steps, those queued when the device had run out of work."""
    accept_by_position: tuple[float, ...] | None = None
    """Share of steps in which draft k and all before it were accepted."""


def measure(
    samples: tuple[Sample, ...],
    *,
    window: int,
    source: AcceptSource,
    wall_s: float,
    peak_tok_s: float,
    server_step_ms: float | None,
) -> Metrics:
    """Figures of one measured window of W = `window` rows. Raises MeasurementError where counts are missing.

    An accept length outside [1, W] is left in, so that the record shows it; gates.validity makes such a cell invalid.
    """
    decoded = [with_steps(sample, window) for sample in samples if sample.tokens > 1]
    if not decoded:
        raise MeasurementError("no request has a second token: there is nothing to time")
    tpots_ms = [1e3 * s.decode_s / (s.tokens - 1) for s in decoded]
    ttfts_ms = [1e3 * s.ttft_s for s in samples]
    tokens = sum(s.tokens for s in samples)
    return Metrics(
        accept_length=accept_length(decoded),
        accept_source=source,
        accept_length_request_mean=statistics.fmean(accept_length([s]) for s in decoded),
        mean_tpot_ms=statistics.fmean(tpots_ms),
        median_tpot_ms=statistics.median(tpots_ms),
        step_ms=1e3 * sum(s.decode_s for s in decoded) / _steps(decoded),
        server_step_ms=server_step_ms,
        mean_ttft_ms=statistics.fmean(ttfts_ms),
        median_ttft_ms=statistics.median(ttfts_ms),
        output_tok_s=tokens / wall_s,
        peak_tok_s=peak_tok_s,
        requests=len(samples),
        output_tokens=tokens,
        wall_s=wall_s,
    )


def accept_length(samples: list[Sample]) -> float:
    """sum(n - 1) / sum(v), the bonus token included."""
    return sum(s.tokens - 1 for s in samples) / _steps(samples)


def with_steps(sample: Sample, window: int) -> Sample:
    """Plain decoding takes one step per token by definition; a speculative request must have been counted."""
    if window == 1:
        return Sample(tokens=sample.tokens, steps=sample.tokens - 1, ttft_s=sample.ttft_s, latency_s=sample.latency_s)
    if not sample.steps:
        raise MeasurementError(f"speculation was asked for, and the server reports no verify count ({sample.steps})")
    return sample


def step_flag(metrics: Metrics) -> str | None:
    """A remark where the server's own step time and the derived one disagree."""
    if metrics.server_step_ms is None:
        return None
    difference = metrics.step_ms / metrics.server_step_ms - 1.0
    if abs(difference) <= STEP_AGREEMENT:
        return None
    return (
        f"step time {metrics.step_ms:.3f} ms is {difference:+.1%} off the server's own {metrics.server_step_ms:.3f} ms"
    )


def _steps(samples: list[Sample]) -> int:
    return sum(s.steps or 0 for s in samples)
