"""The order in which two servers are started, awaited, warmed and stopped; servers are stand-ins that note it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from experiments.comparison import arms as module
from experiments.comparison.arms import Arms
from experiments.errors import LaunchError
from experiments.machine import Cores
from experiments.workloads import Data

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from experiments.spec import CellSpec


@dataclass
class Noted:
    """A server by the name of its log; all of them write into one list."""

    name: str
    events: list[str]
    fails: bool = False
    supervisor_pid: int | None = None
    client: Any = field(init=False)

    def __post_init__(self) -> None:
        self.client = self

    def __enter__(self) -> Noted:
        self.events.append(f"start {self.name}")
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        self.events.append(f"memory of {self.name}")

    def stop(self) -> None:
        if f"stop {self.name}" not in self.events[-4:]:
            self.events.append(f"stop {self.name}")

    def line(self) -> str:
        return self.name

    def wait_ready(self, timeout_s: float) -> float:
        if self.fails:
            raise LaunchError(f"{self.name} died")
        self.events.append(f"ready {self.name}")
        return timeout_s

    @contextlib.contextmanager
    def blamed(self) -> Iterator[None]:
        self.events.append(f"warm {self.name}")
        yield


@pytest.fixture
def events() -> list[str]:
    return []


@pytest.fixture
def opened(
    events: list[str], make_cell: Callable[..., CellSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Arms]:
    def go(*, fails: str = "", **how: Any) -> Arms:
        def running(cell: CellSpec, *, log: Path, cores: object) -> Noted:
            name = log.stem.removeprefix("server-")
            return Noted(name, events, fails=name == fails)

        monkeypatch.setattr(module, "running", running)
        monkeypatch.setattr(module, "_used_mib", dict)
        cell = make_cell()
        data = Data(dataset=tmp_path, dataset_sha256="", warmup=(), task_rows=(), task_sha256=None)
        specs = {"baseline": cell, "candidate": cell}
        return Arms(specs, data, directory=tmp_path, cores=Cores(), say=events.append, **how)  # type: ignore[arg-type]

    return go


WARM = ["ready baseline", "warm baseline", "ready candidate", "warm candidate"]
STOPPED = ["stop candidate", "stop baseline", "memory of candidate", "memory of baseline"]


def test_at_once_both_start_before_the_first_is_awaited(events: list[str], opened: Callable[..., Arms]) -> None:
    with opened(servers="together", start="at_once") as arms:
        assert events == ["start baseline", "start candidate", *WARM, "both servers alive, started at once"]
        assert (arms.launches, arms.room, arms.together) == (2, None, True)
        assert arms.commands == {"baseline": "baseline", "candidate": "candidate"}
        events.clear()
    assert events == STOPPED, "neither waits for memory that the other still holds"


def test_at_once_they_are_renewed_in_the_other_order(events: list[str], opened: Callable[..., Arms]) -> None:
    with opened(servers="together", start="at_once") as arms:
        events.clear()
        arms.relaunch()
        assert events == [*STOPPED, "start candidate", "start baseline", *WARM[2:], *WARM[:2]]
        assert arms.launches == 4


@pytest.mark.parametrize("fails", ["baseline", "candidate"])
def test_of_two_started_at_once_none_outlives_the_other_s_failure(
    events: list[str], opened: Callable[..., Arms], fails: str
) -> None:
    with pytest.raises(LaunchError, match=f"{fails} died"), opened(servers="together", start="at_once", fails=fails):
        pytest.fail("opened")
    assert events[-4:] == STOPPED


def test_in_turn_one_is_warm_before_the_other_starts(events: list[str], opened: Callable[..., Arms]) -> None:
    with opened(servers="together"):
        first, said, *second = [event for event in events if event.startswith(("start", "both", "warm"))][1:]
        assert (first, said, second) == (
            "warm baseline",
            "both servers alive: not launched here",
            ["start candidate", "warm candidate"],
        )
