"""A/B: what the paired answers of two arms say, and when enough has been said.

The surprise: two intervals stand side by side for a figure and only one decides. The always-valid one may be looked at
after every block, so it stops the run and carries the verdict; the bootstrap is the figure of the finished run, over
prompts as well as blocks, and would lie to somebody who stopped because of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import expm1, isfinite, sqrt
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy import stats

from analysis.bootstrap import RESAMPLES, bootstrap
from analysis.pairs import FIGURES, contrasts
from analysis.sequence import always_valid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from analysis.logratio import LogRatio
    from analysis.pairs import Figure, Pairs

Stop = Literal["decided", "equal", "inside_floor", "budget"]
POWER = 0.8
NORMAL_MAD = 1.4826
"""Standard deviations of a normal distribution per median absolute deviation."""


@dataclass(frozen=True, kw_only=True)
class ABResult:
    """What a verdict needs of an A/B.

    Intervals of step time and TPOT are always valid. Accept length's is bootstrapped, since under greedy decoding only
    prompts make it vary.
    """

    step_time: LogRatio
    tpot: LogRatio
    accept: LogRatio
    floor: float
    """The machine's A/A floor as a ratio: 0.012 is 1.2 %."""
    mde: float
    """Minimum detectable effect of this run, as a ratio."""
    same_arms: bool
    """Both arms ran the same cell on the same code."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All figures of a run with both intervals; the effects are kept apart and never multiplied."""

    always_valid: Mapping[Figure, LogRatio]
    bootstrap: Mapping[Figure, LogRatio]
    detectable: Mapping[Figure, float]
    blocks: int
    cells: int

    def result(self, figure: Figure, floor: float, *, same_arms: bool) -> ABResult:
        """`figure` is the one that the verdict goes by."""
        return ABResult(
            step_time=self.always_valid["step_time"],
            tpot=self.always_valid["tpot"],
            accept=self.bootstrap["accept"],
            floor=floor,
            mde=self.detectable[figure],
            same_arms=same_arms,
        )

    def to_json(self) -> dict[str, Any]:
        """As it goes into a record: log-ratios, and None where an interval has no end."""
        intervals: dict[str, Any] = {
            figure: {
                "always_valid": self.always_valid[figure].to_json(),
                "bootstrap": self.bootstrap[figure].to_json(),
                "mde": self.detectable[figure] if isfinite(self.detectable[figure]) else None,
            }
            for figure in FIGURES
        }
        return {"blocks": self.blocks, "cells": self.cells, **intervals}


def compare(pairs: Pairs, *, seed: int, resamples: int = RESAMPLES) -> Comparison:
    by_block = {figure: contrasts(pairs, figure) for figure in FIGURES}
    return Comparison(
        always_valid={figure: always_valid(values) for figure, values in by_block.items()},
        bootstrap={figure: bootstrap(pairs, figure, seed=seed, resamples=resamples) for figure in FIGURES},
        detectable={figure: detectable(values) for figure, values in by_block.items()},
        blocks=pairs.blocks,
        cells=len(pairs.block),
    )


def detectable(values: NDArray[np.float64], *, power: float = POWER) -> float:
    """Minimum detectable effect of so many blocks with this noise, as a ratio.

    An effect of this size leaves an interval as wide as the one seen, on one side of zero, with probability `power`.
    """
    interval = always_valid(values)
    spread = NORMAL_MAD * float(np.median(np.abs(values - np.median(values))))
    reach = (interval.high - interval.low) / 2 + float(stats.norm.ppf(power)) * spread / sqrt(len(values))
    return expm1(min(reach, 700.0)) if isfinite(reach) else reach


def stop(
    interval: LogRatio,
    *,
    floor: float,
    least: float | None = None,
    margin: float | None,
    spent_s: float,
    block_s: float,
    budget_s: float,
) -> Stop | None:
    """To be asked after each block; None: go on.

    `interval` is the always-valid one of the figure the verdict goes by; `floor` holds now and `least` at the end of
    the budget, where more launches will have made it smaller (None: as now); `margin` is the author's for "equal", None
    where a difference is expected; `block_s` what one more block will take.
    """
    if margin is not None and interval.inside(margin):
        return "equal"
    if interval.beyond(floor):
        return "decided"
    if margin is None and interval.inside(floor if least is None else least):
        return "inside_floor"
    return "budget" if spent_s + block_s > budget_s else None
