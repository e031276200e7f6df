"""How a machine's step times vary, as six numbers, and how to read them off real runs.

Log step time of a request = what its launch drew + a linear drift + a slow wave (Ornstein-Uhlenbeck: correlated over
`slow_s` seconds) + bursts (somebody else's load, on and off at random) + white noise. The surprise: on a shared machine
white noise is the smallest of them, so averages over one long stretch per arm converge to the wrong answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

NORMAL_MAD = 1.4826
BURST = 4.0
"""Robust standard deviations above the median from which on a request counts as disturbed by a burst."""
LAGS = 6


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Standard deviations are of log step time, so 0.01 is 1 %."""

    white: float
    slow: float
    slow_s: float
    drift_per_min: float
    """Standard deviation, over runs, of the slope."""
    launch: float
    burst_per_min: float
    burst_s: float
    """Mean length of a burst."""
    burst_height: float
    """Mean of its log factor."""


@dataclass(frozen=True)
class Run:
    """One launch under a steady load: the end of each request on a common clock, and its step time."""

    at_s: Floats
    step_s: Floats


def fit(runs: Sequence[Run]) -> Noise:
    """Of launches of one cell on one machine, each of 12 requests at least. Raises ValueError for less."""
    if len(runs) < 2 or any(len(run.step_s) < 2 * LAGS for run in runs):
        raise ValueError(f"noise needs 2 launches of {2 * LAGS} requests at least")
    logs = [np.log(run.step_s) for run in runs]
    residuals = [values - np.median(values) for values in logs]
    disturbed = [_disturbed(values) for values in residuals]
    spacing = float(np.median(np.concatenate([np.diff(run.at_s) for run in runs])))
    calm = [np.where(bad, np.nan, values) for values, bad in zip(residuals, disturbed, strict=True)]
    slopes = [_slope(run.at_s, values) for run, values in zip(runs, calm, strict=True)]
    flat = [v - slope * (r.at_s - r.at_s.mean()) for v, slope, r in zip(calm, slopes, runs, strict=True)]
    white, slow, slow_s = _split(flat, spacing)
    total_min = sum(float(run.at_s[-1] - run.at_s[0]) for run in runs) / 60
    episodes = sum(int((np.diff(bad.astype(int), prepend=0) == 1).sum()) for bad in disturbed)
    hit = np.concatenate(disturbed)
    heights = np.concatenate(residuals)[hit]
    return Noise(
        white=white,
        slow=slow,
        slow_s=slow_s,
        drift_per_min=60 * float(np.sqrt(np.mean(np.square(slopes)))),
        launch=float(np.std([np.median(values) for values in logs], ddof=1)),
        burst_per_min=episodes / total_min,
        burst_s=float(hit.sum()) * spacing / episodes if episodes else 0.0,
        burst_height=float(heights.mean()) if episodes else 0.0,
    )


def _disturbed(residuals: Floats) -> NDArray[np.bool_]:
    """Far above the median. The spread is taken below it, where no burst reaches."""
    spread = NORMAL_MAD * float(np.median(np.abs(residuals[residuals <= 0])))
    bad: NDArray[np.bool_] = residuals > BURST * spread
    return bad


def _slope(at_s: Floats, residuals: Floats) -> float:
    """Per second, least squares over the calm requests."""
    calm = ~np.isnan(residuals)
    return float(np.polyfit(at_s[calm] - at_s.mean(), residuals[calm], 1)[0])


def _split(series: Sequence[Floats], spacing: float) -> tuple[float, float, float]:
    """White, slow and its correlation time: the autocovariance beyond lag 0 is the slow wave's alone."""
    covariance = [_autocovariance(series, lag) for lag in range(LAGS)]
    if covariance[1] <= 0:
        return float(np.sqrt(max(covariance[0], 0.0))), 0.0, spacing
    later = max(covariance[2], 0.0)
    decay = min(max(later / covariance[1], 0.05), 0.99)
    slow = min(covariance[1] / decay, covariance[0])
    return float(np.sqrt(covariance[0] - slow)), float(np.sqrt(slow)), -spacing / float(np.log(decay))


def _autocovariance(series: Sequence[Floats], lag: int) -> float:
    products = np.concatenate([(s - np.nanmean(s))[lag:] * (s - np.nanmean(s))[: len(s) - lag] for s in series])
    return float(np.nanmean(products))
