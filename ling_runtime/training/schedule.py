"""Learning rate over a run: a short rise, a plateau, a straight fall to zero over the last part."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    peak: float
    steps: int
    rise: int = 200
    fall: float = 0.4
    """Share of the run spent falling."""

    def at(self, step: int) -> float:
        left = (self.steps - step) / (self.fall * self.steps)
        return self.peak * min(1.0, (step + 1) / self.rise, max(left, 0.0))
