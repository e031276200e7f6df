"""How scheduled verification reaches the executor: calibrated confidences in, rows per request out.

In mode `cap-accept` every row is computed and acceptance ends where the plan does; in `compact` the other rows are not
computed at all. Both give the same tokens, so the first is for trying out a policy. Mode `static` has no schedule.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ling_runtime.speculation.dspark.artifact import load_cost, load_temperatures
from ling_runtime.speculation.dspark.calibration import confidences
from ling_runtime.speculation.dspark.identity import identity_of
from ling_runtime.speculation.dspark.planner import planner_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from ling_runtime.speculation.dspark.planner import Planner, Scheduler
    from ling_runtime.speculation.interface import Reads

Mode = Literal["static", "cap-accept", "compact"]


@dataclass(frozen=True, kw_only=True)
class ScheduleSettings:
    """Paths of None: confidences as they are, and rows that cost nothing."""

    mode: Mode = "static"
    scheduler: Scheduler = "causal"
    temperatures_path: str | None = None
    cost_path: str | None = None
    allow_fallback: bool = False
    """Files that do not fit cost a warning instead of an error."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """Satisfies `interface.Schedule`."""

    temperatures: tuple[float, ...]
    planner: Planner
    packed: bool
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def reads(self) -> Reads:
        return self.planner.reads

    def lengths(self, slots: Sequence[int], confidence: Tensor) -> tuple[int, ...]:
        return self.planner.lengths(slots, confidences(confidence, self.temperatures).tolist())

    def forget(self, slot: int) -> None:
        self.planner.forget(slot)


def load_schedule(
    target: str,
    draft: str,
    gamma: int,
    settings: ScheduleSettings,
    *,
    device: str,
    dtype: str,
    kernels: Mapping[str, str],
) -> Planned | None:
    """Read the artifacts for these two checkpoints; ConfigError for one that does not fit. None for mode static."""
    if settings.mode == "static":
        return None
    counted = kernels if settings.mode == "compact" else None  # the table of a policy is not of steps with every row
    identity = identity_of(target, draft, gamma, device=device, dtype=dtype, kernels=counted)
    temperatures = load_temperatures(settings.temperatures_path, identity, allow_fallback=settings.allow_fallback)
    cost = load_cost(settings.cost_path, identity, allow_fallback=settings.allow_fallback)
    return Planned(
        temperatures=temperatures.value,
        planner=planner_for(settings.scheduler, cost.value),
        packed=settings.mode == "compact",
        about={"sts": temperatures.about, "cost_table": cost.about},
    )
