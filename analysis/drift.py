"""Did the machine change while a cell was measured: step time of the last third of its requests over the first third.

The surprise: requests are not independent, so each third is cut into batches of consecutive ones and the interval comes
from the batches. A drift is a remark and no verdict; A/B blocks are what makes a comparison immune to it.
"""

from __future__ import annotations

from math import exp, inf, isqrt, log, sqrt
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from analysis.logratio import LogRatio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

ALPHA = 0.05
REMARK = 0.01
"""Ratio under which a drift is not worth a remark even if it is certain."""


def drift(decode_s: Sequence[float], steps: Sequence[float], *, alpha: float = ALPHA) -> LogRatio:
    """[R] in the order of measurement. Above zero: steps became slower. Fewer than six requests show none."""
    third = len(steps) // 3
    if third < 2:
        return LogRatio(estimate=0.0, low=-inf, high=inf)
    seconds, counts = np.asarray(decode_s, dtype=float), np.asarray(steps, dtype=float)
    ends = [_mean(seconds[part], counts[part]) for part in (slice(0, third), slice(len(counts) - third, None))]
    (first, first_variance, first_free), (last, last_variance, last_free) = ends
    variance = first_variance + last_variance
    estimate = log(last / first)
    if variance == 0:
        return LogRatio(estimate=estimate, low=estimate, high=estimate)
    free = variance**2 / (first_variance**2 / first_free + last_variance**2 / last_free)
    reach = float(stats.t.ppf(1 - alpha / 2, df=free)) * sqrt(variance)
    return LogRatio(estimate=estimate, low=estimate - reach, high=estimate + reach)


def remark(ratio: LogRatio) -> str | None:
    if not ratio.decided or abs(exp(ratio.estimate) - 1) < REMARK:
        return None
    how = "fell: it was still warming up" if ratio.below else "rose: the machine slowed down"
    return f"step time from the first third of the requests to the last {ratio}; it {how}"


def _mean(seconds: Floats, counts: Floats) -> tuple[float, float, int]:
    """Step time of a stretch, the variance of its logarithm, and the degrees of freedom of that."""
    batch = np.arange(len(counts)) // isqrt(len(counts))
    by_batch = [np.bincount(batch, weights=values) for values in (seconds, counts)]
    pulls = by_batch[0] / seconds.sum() - by_batch[1] / counts.sum()
    batches = len(pulls)
    return seconds.sum() / counts.sum(), float((pulls**2).sum()) * batches / (batches - 1), batches - 1
