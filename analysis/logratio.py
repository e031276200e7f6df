"""log(candidate / baseline) with its interval: the one shape in which a difference between two arms is stated.

The surprise: an interval may be unbounded. Too few blocks leave it at (-inf, inf), which decides nothing; it is never
shortened to something that looks like knowledge.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import expm1, hypot, isfinite, log1p


@dataclass(frozen=True, kw_only=True)
class LogRatio:
    """Below zero the candidate's figure is the smaller one."""

    estimate: float
    low: float
    high: float

    @property
    def below(self) -> bool:
        """The whole interval is below zero."""
        return self.high < 0

    @property
    def above(self) -> bool:
        return self.low > 0

    @property
    def decided(self) -> bool:
        return self.below or self.above

    def beyond(self, floor: float) -> bool:
        """Decided, and the estimate is farther from zero than the interval and the A/A floor (a ratio) reach together.

        What the blocks left uncertain and what the launches drew are independent, so their reaches add in squares.
        """
        near = self.high - self.estimate if self.estimate < 0 else self.estimate - self.low
        return self.decided and abs(self.estimate) > hypot(near, log1p(floor))

    def inside(self, margin: float) -> bool:
        """The whole interval is within -margin..margin, a ratio (0.01 is 1 %)."""
        return max(abs(expm1(self.low)), abs(expm1(self.high))) <= margin

    def __neg__(self) -> LogRatio:
        """The baseline over the candidate."""
        return LogRatio(estimate=-self.estimate, low=-self.high, high=-self.low)

    def __str__(self) -> str:
        return f"{expm1(self.estimate):+.2%} [{expm1(self.low):+.2%}, {expm1(self.high):+.2%}]"

    def to_json(self) -> dict[str, float | None]:
        """An unbounded end is None: strict JSON has no infinity."""
        return {key: value if isfinite(value) else None for key, value in vars(self).items()}
