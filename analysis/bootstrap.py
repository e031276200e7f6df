"""The interval of a log-ratio of sums over prompts and blocks, paired in both: a studentised bootstrap of clusters.

Answers of one block share the machine's mood, answers to one prompt share its text, so neither is independent. The
standard error counts both (variance over blocks plus variance over prompts less that over cells: Cameron, Gelbach and
Miller, J. Bus. Econ. Stat. 29 (2011) 238). The quantile comes from resampling whole clusters of whichever kind has the
larger variance and studentising each resample (symmetric bootstrap-t: Hall, J. R. Stat. Soc. B 50 (1988) 35), which
keeps its coverage at ten clusters, where percentiles do not. The surprise: with every prompt in one block only, all
this is the bootstrap over blocks, and under greedy decoding, where accept length has no block noise at all, the one
over prompts. It holds for a number of blocks fixed beforehand; who stops by looking needs sequence.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from analysis.logratio import LogRatio
from analysis.pairs import log_ratio, totals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from analysis.pairs import Figure, Pairs

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

RESAMPLES = 1999
ALPHA = 0.05


@dataclass(frozen=True)
class Clusters:
    """Sums of whole clusters, [clusters, 2] each, the baseline's first."""

    numerators: Floats
    denominators: Floats

    @classmethod
    def of(cls, numerators: Floats, denominators: Floats, label: Ints) -> Clusters:
        return cls(totals(numerators, label), totals(denominators, label))

    def pulls(self, weights: Floats) -> tuple[Floats, Floats]:
        """[..., clusters] multiplicities -> [...] log-ratio, and [..., clusters] what each cluster adds to it."""
        above, below = weights @ self.numerators, weights @ self.denominators
        shares = self.numerators / above[..., None, :] - self.denominators / below[..., None, :]
        return log_ratio(above, below), shares[..., 1] - shares[..., 0]

    def studentised(self, weights: Floats) -> tuple[Floats, Floats]:
        """[..., clusters] -> log-ratio and its variance, [...] each."""
        estimate, pulls = self.pulls(weights)
        count = self.numerators.shape[0]
        variance: Floats = (weights * pulls**2).sum(axis=-1) * count / max(count - 1, 1)
        return estimate, variance


def bootstrap(pairs: Pairs, figure: Figure, *, seed: int, resamples: int = RESAMPLES, alpha: float = ALPHA) -> LogRatio:
    """Two-sided, 1 - alpha. Unbounded where all answers are of one block and one prompt."""
    sums = pairs.ratio(figure)
    cells = np.arange(len(pairs.block))
    kinds = [Clusters.of(*sums, label) for label in (pairs.block, pairs.prompt, cells)]
    (estimate, *_), variances = zip(*(kind.studentised(np.ones(len(kind.numerators))) for kind in kinds), strict=True)
    widest = kinds[int(variances[1] > variances[0])]
    error = float(np.sqrt(max(variances[0] + variances[1] - variances[2], *variances[:2])))
    if len(widest.numerators) < 2:
        return LogRatio(estimate=float(estimate), low=-np.inf, high=np.inf)
    reach = _quantile(widest, np.random.default_rng(seed), resamples, alpha) * error
    return LogRatio(estimate=float(estimate), low=float(estimate - reach), high=float(estimate + reach))


def _quantile(clusters: Clusters, generator: np.random.Generator, resamples: int, alpha: float) -> float:
    """Of |resampled - estimate| over its own error. A resample of one cluster alone has no error and says nothing."""
    count = len(clusters.numerators)
    weights = generator.multinomial(count, np.full(count, 1 / count), size=resamples).astype(float)
    resampled, variance = clusters.studentised(weights)
    usable = variance > 0
    if not usable.any():
        return 0.0
    scores = np.abs(resampled[usable] - clusters.pulls(np.ones(count))[0]) / np.sqrt(variance[usable])
    return float(np.quantile(scores, 1 - alpha))
