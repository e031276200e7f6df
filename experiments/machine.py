"""The machine while it measures: which cores are whose, and who else was busy.

The surprise: on two cores the driver counts as a client and moves to the client's core, or its own polling would show
up in the server's step times.
"""

from __future__ import annotations

import functools
import os
import time
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Cores:
    """Disjoint core sets; both empty where nothing is pinned."""

    server: tuple[int, ...] = ()
    client: tuple[int, ...] = ()


@functools.cache
def available_cores() -> frozenset[int]:
    """Those this process was started on; asked once, before it moves itself."""
    return frozenset(os.sched_getaffinity(0))


def split_cores(available: frozenset[int], server_threads: int | None) -> Cores:
    """The first `server_threads` cores for the server, None: all but one; the others for the client, at least one."""
    cores = sorted(available)
    if len(cores) < 2:
        return Cores()
    count = min(server_threads or len(cores), len(cores) - 1)
    return Cores(tuple(cores[:count]), tuple(cores[count:]))


class LoadMeter:
    """CPU that processes other than ours used while it ran, in cores."""

    def __init__(self) -> None:
        self._start = _snapshot()

    def foreign_cores(self) -> float:
        (wall, busy, ours), (wall0, busy0, ours0) = _snapshot(), self._start
        return max(0.0, ((busy - busy0) - (ours - ours0)) / (wall - wall0))


def load_average() -> list[float]:
    return list(os.getloadavg())


def _snapshot() -> tuple[float, float, float]:
    """(wall clock, CPU seconds of the machine, CPU seconds of this process and all below it)."""
    machine = psutil.cpu_times()
    busy = sum(machine) - machine.idle - getattr(machine, "iowait", 0.0) - getattr(machine, "guest", 0.0)
    own = psutil.Process()
    return time.monotonic(), busy, sum(_cpu_seconds(p) for p in [own, *own.children(recursive=True)])


def _cpu_seconds(process: psutil.Process) -> float:
    """Its own time and that of children it has waited for."""
    try:
        return float(sum(process.cpu_times()[:4]))
    except psutil.NoSuchProcess:  # it ended between list and read; its parent has its time now
        return 0.0
