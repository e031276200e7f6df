"""An interval that may be looked at after every block, by an experiment that stops as soon as it likes what it sees.

Each block's order, ABBA or BAAB, is drawn by a fair coin. If the change multiplies step time by exp(theta), a block's
contrast is theta plus noise whose sign that coin decides: given all magnitudes m_i = |x_i - theta|, the signs are fair
coins, whatever drift, outliers or correlation the machine had. So a gambler who stakes the share b * min(1, m_i / s_i)
on the sign of block i, s_i the median of the first 1, 2, 4, 8, ... magnitudes, cannot expect to win, and, averaged over
all b in (-1, 1), the capital stays below 1/alpha for ever with probability 1 - alpha (Ville). The values of theta at
which it is below are the interval. The surprise: no distribution is assumed and the wildest block weighs no more than
a median one; the price is that eight blocks are the fewest that can decide anything at 95 %.

Sources: betting and its inversion, Waudby-Smith and Ramdas, J. R. Stat. Soc. B 86 (2024) 1; Ville's inequality, Howard
et al., Ann. Statist. 49 (2021) 1055; the clipped score, Huber, Ann. Math. Statist. 35 (1964) 73. Where the effect
differs from block to block, the interval is about its centre, and exact as far as the differences are symmetric.
"""

from __future__ import annotations

from functools import cache
from math import inf, log
from typing import TYPE_CHECKING

import numpy as np

from analysis.logratio import LogRatio

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

ALPHA = 0.05
STAKES, WEIGHTS = np.polynomial.legendre.leggauss(24)
"""A uniform prior over the stake b; a discrete prior is as valid as a continuous one."""
SCAN = 32
RESOLUTION, TINY = 1e-3, 1e-9
"""Of an interval's ends, as a share of their distance from the estimate, or absolute; ends are rounded outwards."""


def always_valid(contrasts: Floats, *, alpha: float = ALPHA) -> LogRatio:
    """`contrasts` [n], n >= 1, in the order in which the blocks ran; valid at every n at once."""
    estimate = centre(contrasts)
    return LogRatio(
        estimate=estimate,
        low=estimate - _reach(contrasts - estimate, alpha),
        high=estimate + _reach(estimate - contrasts, alpha),
    )


def centre(contrasts: Floats) -> float:
    """Hodges and Lehmann's estimate: the median over the means of any two blocks."""
    rows, columns = np.triu_indices(len(contrasts))
    return float(np.median((contrasts[rows] + contrasts[columns]) / 2))


def log_capital(residuals: Floats) -> Floats:
    """[..., n] contrasts less theta -> [..., n]: the gambler's log capital after each block."""
    stakes = np.sign(residuals) * clipped(np.abs(residuals))
    gains: Floats = np.log1p(stakes[..., None] * STAKES).cumsum(axis=-2)
    top: Floats = gains.max(axis=-1)
    shares: Floats = (np.exp(gains - top[..., None]) * (WEIGHTS / 2)).sum(axis=-1)
    return top + np.log(shares)


def clipped(magnitudes: Floats) -> Floats:
    """[..., n] -> [..., n]: each over the median of the largest power of two of those up to and with it, 1 at most."""
    shares = np.zeros_like(magnitudes)
    start, n = 0, magnitudes.shape[-1]
    while start < n:
        known = start + 1
        median = np.median(magnitudes[..., :known], axis=-1, keepdims=True)
        part = magnitudes[..., start : 2 * known - 1]
        shares[..., start : 2 * known - 1] = np.minimum(part, median) / np.where(median > 0, median, 1)
        start = 2 * known - 1
    return shares


@cache
def fewest_blocks(alpha: float = ALPHA) -> int:
    """So many blocks, all equal, are needed before any interval is bounded."""
    n = 1
    while log_capital(np.ones(n))[-1] < log(1 / alpha):
        n += 1
    return n


def _reach(residuals: Floats, alpha: float) -> float:
    """How far below the estimate the last theta lies that is not refused; inf where all are."""
    if len(residuals) < fewest_blocks(alpha):
        return inf
    low, high = 0.0, float(np.abs(residuals).max())
    while _accepted(residuals, np.array([high]), alpha)[0] and high > 0:
        low, high = high, 2 * high
    while high - low > max(RESOLUTION * high, TINY):
        grid = np.linspace(low, high, SCAN + 1)
        accepted = np.flatnonzero(_accepted(residuals, grid, alpha))
        last = int(accepted[-1]) if accepted.size else 0
        low, high = float(grid[last]), float(grid[min(last + 1, SCAN)])
    return high


def _accepted(residuals: Floats, distances: Floats, alpha: float) -> NDArray[np.bool_]:
    accepted: NDArray[np.bool_] = log_capital(residuals + distances[:, None])[:, -1] < log(1 / alpha)
    return accepted
