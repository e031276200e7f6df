"""The A/A floor: how far apart two launches of the very same cell may come out on this machine.

Blocks cancel what changes while two servers run; they cannot cancel what each server drew at its launch (memory layout,
placement, clocks). So the floor comes from whole A/A runs, each with freshly launched servers. The surprise: it is no
standard error but a prediction, the size that one more A/A run would stay under in 97 of 100 cases, and with few runs
it is honestly large: rms times Student's t with as many degrees of freedom as runs, since the true mean is zero.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from dataclasses import dataclass
from math import expm1, log1p, sqrt
from typing import TYPE_CHECKING, Any

from scipy import stats

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COVERAGE = 0.97
FEWEST_RUNS = 3
MAX_AGE = dt.timedelta(days=7)


class FloorError(ValueError):
    """No floor that may be used; the message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Floor:
    """`value` is a ratio: 0.012 is 1.2 %."""

    value: float
    identity: str
    """Hash of everything it holds for; see `identity`."""
    log_ratios: tuple[float, ...]
    """What each A/A run came to."""
    measured_utc: str
    """When the last of them ended."""
    foreign_cores: float | None = None
    """CPU that other processes used meanwhile, in cores; None where nobody looked."""

    def stale(self, identity: str, now: dt.datetime, max_age: dt.timedelta = MAX_AGE) -> str | None:
        """Why it says nothing about a comparison made now under `identity`; None: it does."""
        if self.identity != identity:
            return f"measured for {self.identity}, asked for {identity}: another machine, model, workload or harness"
        age = now - dt.datetime.fromisoformat(self.measured_utc)
        if age > max_age:
            return f"{age.days} days old, {max_age.days} allowed"
        if age < dt.timedelta(0):
            return f"measured in the future ({self.measured_utc})"
        return None

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "log_ratios": list(self.log_ratios)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Floor:
        return cls(**{**values, "log_ratios": tuple(values["log_ratios"])})


def from_runs(
    log_ratios: Sequence[float], identity: str, ended: dt.datetime, foreign_cores: float | None = None
) -> Floor:
    """`log_ratios`: the estimates of independent A/A runs, each with servers of its own. Raises FloorError."""
    runs = len(log_ratios)
    if runs < FEWEST_RUNS:
        raise FloorError(f"{runs} A/A runs; {FEWEST_RUNS} at least, each with freshly launched servers")
    rms = sqrt(sum(ratio**2 for ratio in log_ratios) / runs)
    quantile = float(stats.t.ppf((1 + COVERAGE) / 2, df=runs))
    return Floor(
        value=expm1(rms * quantile),
        identity=identity,
        log_ratios=tuple(log_ratios),
        measured_utc=ended.astimezone(dt.UTC).isoformat(timespec="seconds"),
        foreign_cores=foreign_cores,
    )


def over(floor: float, blocks: Sequence[int]) -> float:
    """The floor, a ratio, of a comparison whose servers were launched anew in between: `blocks` of it on each launch.

    What a launch draws is independent of the others and weighs as much as its blocks, so the reach shrinks by the root
    of sum(n)**2 / sum(n**2): the number of launches, where all have as many blocks.
    """
    return expm1(log1p(floor) * sqrt(sum(n * n for n in blocks)) / sum(blocks))


def launches(blocks: int, each: int) -> tuple[int, ...]:
    """Blocks on each launch where servers are launched anew after `each` of them; 0: never."""
    whole, rest = divmod(blocks, each) if each else (0, blocks)
    return (*[each] * whole, *filter(None, [rest]))


def usable(floor: Floor | None, identity: str, now: dt.datetime, max_age: dt.timedelta = MAX_AGE) -> Floor:
    """Raises FloorError for a floor that is missing or stale; nothing is judged without one."""
    if floor is None:
        raise FloorError("no A/A floor was measured here; run the A/A first")
    if reason := floor.stale(identity, now, max_age):
        raise FloorError(f"A/A floor refused, {reason}; measure it again")
    return floor


def identity(parts: Mapping[str, str]) -> str:
    """Of machine, engine, model revision, workload and harness, by whatever names the caller has for them."""
    return hashlib.sha256(json.dumps(dict(parts), sort_keys=True).encode()).hexdigest()[:16]
