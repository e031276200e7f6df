"""What a decode step costs for so many requests and rows: the two table formats of SGLang, measured or given.

A step table holds steps per second by rows and is looked up without interpolation; an additive one holds seconds, a
constant plus a term by requests plus a term by rows, and is interpolated. Both end flat: beyond the last probe nothing
is known, so nothing is assumed. The surprise: under a flat cost rows are free, so planning ends at "verify all".
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ling_runtime.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class CostTable(Protocol):
    @property
    def flat(self) -> bool:
        """Whether rows cost nothing."""

    def step_time(self, requests: int, rows: int) -> float:
        """Seconds (up to a constant factor) of a step with `rows` rows for all its `requests`, rows >= requests."""

    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class StepTable:
    """Steps per second at the largest probed number of rows that is not above the step's."""

    rows: tuple[int, ...]
    steps_per_second: tuple[float, ...]
    max_rows: int

    @property
    def flat(self) -> bool:
        return len(set(self.steps_per_second)) == 1

    def step_time(self, requests: int, rows: int) -> float:  # noqa: ARG002 - this format knows rows only
        return 1.0 / self.steps_per_second[max(bisect_right(self.rows, rows) - 1, 0)]

    def to_json(self) -> dict[str, Any]:
        return {
            "sample_batch_tokens": list(self.rows),
            "sample_steps_per_sec": list(self.steps_per_second),
            "max_batch_tokens": self.max_rows,
        }


@dataclass(frozen=True)
class Curve:
    """A piecewise linear function through its probes, constant outside them."""

    at: tuple[int, ...]
    values: tuple[float, ...]

    def __call__(self, x: int) -> float:
        i = bisect_right(self.at, x)
        if i in (0, len(self.at)):
            return self.values[max(i - 1, 0)]
        low, high = self.at[i - 1], self.at[i]
        return self.values[i - 1] + (self.values[i] - self.values[i - 1]) * (x - low) / (high - low)


@dataclass(frozen=True)
class AdditiveTable:
    """bias + alpha(requests) + theta(rows), in seconds."""

    bias: float
    alpha: Curve
    theta: Curve

    @property
    def flat(self) -> bool:
        return len(set(self.theta.values)) == 1

    def step_time(self, requests: int, rows: int) -> float:
        return self.bias + self.alpha(requests) + self.theta(rows)

    def to_json(self) -> dict[str, Any]:
        return {
            "bias_seconds": self.bias,
            "bs_probes": list(self.alpha.at),
            "alpha_seconds": list(self.alpha.values),
            "m_probes": list(self.theta.at),
            "theta_seconds": list(self.theta.values),
        }


FLAT = StepTable((1,), (1.0,), 1)
"""What is assumed without a table."""


def from_json(raw: Mapping[str, Any]) -> CostTable:
    """Either format, told apart by the key `bias_seconds`; ConfigError names the key that is wrong."""
    if "bias_seconds" in raw:
        return _additive(raw)
    rows = _probes(raw, "sample_batch_tokens")
    speeds = _numbers(raw, "sample_steps_per_sec", len(rows), "positive", lambda x: x > 0)
    top = raw.get("max_batch_tokens", rows[-1])
    if type(top) is not int or top < rows[-1]:
        raise ConfigError(f"max_batch_tokens={top!r}: must be an integer of at least the last probe, {rows[-1]}")
    return StepTable(rows, speeds, top)


def _additive(raw: Mapping[str, Any]) -> AdditiveTable:
    (bias,) = _numbers({"bias_seconds": [raw["bias_seconds"]]}, "bias_seconds", 1, "positive", lambda x: x > 0)
    requests, rows = _probes(raw, "bs_probes"), _probes(raw, "m_probes")
    alpha = _numbers(raw, "alpha_seconds", len(requests), "finite", lambda _: True)
    theta = _numbers(raw, "theta_seconds", len(rows), "finite", lambda _: True)
    if bias + min(alpha) + min(theta) <= 0:
        raise ConfigError("bias_seconds + alpha_seconds + theta_seconds: a step's time must be positive at all probes")
    return AdditiveTable(bias, Curve(requests, alpha), Curve(rows, theta))


def _probes(raw: Mapping[str, Any], key: str) -> tuple[int, ...]:
    values = raw.get(key)
    if not isinstance(values, list) or not values or any(type(x) is not int or x < 1 for x in values):
        raise ConfigError(f"{key}={values!r}: must be a list of integers of at least 1")
    if sorted(set(values)) != values:
        raise ConfigError(f"{key}={values}: must be strictly increasing")
    return tuple(values)


def _numbers(
    raw: Mapping[str, Any], key: str, count: int, what: str, allowed: Callable[[float], bool]
) -> tuple[float, ...]:
    values = raw.get(key)
    if not isinstance(values, list) or len(values) != count:
        raise ConfigError(f"{key}={values!r}: must be a list of {count} numbers, one for each probe")
    for value in values:
        if type(value) not in (int, float) or not abs(value) <= sys.float_info.max or not allowed(value):
            raise ConfigError(f"{key}: {value!r} in it must be a {what} number")
    return tuple(float(value) for value in values)
