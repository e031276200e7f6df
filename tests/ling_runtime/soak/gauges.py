"""What is looked at while a server is soaked, always at rest and then under the same eight requests."""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import psutil

if TYPE_CHECKING:
    from collections.abc import Sequence

CANARIES = [
    {
        "text": f"Question: Ann has {n} pears and buys {n + 5} more. How many pears does she have now?\nAnswer:",
        "sampling_params": {"temperature": 0, "max_new_tokens": 32, "ignore_eos": True},
    }
    for n in range(3, 11)
]


@dataclass(frozen=True, kw_only=True)
class Reading:
    at_s: float
    rss_mb: float
    descriptors: int
    threads: int
    step_ms: float
    """Mean decode step while the canaries run together, by the server's clock."""
    step_cpu_ms: float
    """Processor time of the whole server in that while, per step: foreign load does not count."""
    answers: tuple[tuple[int, ...], ...]
    unreturned: tuple[str, ...]
    """What requests should have given back and did not."""


def read(url: str, pid: int, began: float) -> Reading:
    """To be called when no client runs: no request that was left may be running still."""
    process = psutil.Process(pid)
    held = unreturned(url)
    httpx.post(f"{url}/flush_cache", params={"timeout": 10}).raise_for_status()
    rss, descriptors, threads = process.memory_info().rss / 2**20, process.num_fds(), process.num_threads()
    cpu = cpu_ms(pid)
    answers = _together(url)
    cpu = cpu_ms(pid) - cpu
    steps = httpx.get(f"{url}/server_info").json()["steps"]
    return Reading(
        at_s=time.monotonic() - began,
        rss_mb=rss,
        descriptors=descriptors,
        threads=threads,
        step_ms=1e3 * steps["total_s"] / steps["count"],
        step_cpu_ms=cpu / steps["count"],
        answers=answers,
        unreturned=held,
    )


def growth_mb(readings: Sequence[Reading]) -> float:
    """Fitted growth of memory from the end of the first third on, while pools and caches still fill before."""
    late = readings[len(readings) // 3 :]
    slope = np.polyfit([one.at_s for one in late], [one.rss_mb for one in late], 1)[0]
    return float(slope) * (late[-1].at_s - late[0].at_s)


def drift(values: Sequence[float]) -> float:
    """Lower quartile of the last third over that of the first, minus one: foreign load only ever adds."""
    third = len(values) // 3
    first, last = (statistics.quantiles(part, method="inclusive")[0] for part in (values[:third], values[-third:]))
    return last / first - 1


def unreturned(url: str, patience_s: float = 5.0) -> tuple[str, ...]:
    """What requests still hold; one that its client left a moment ago may take one more step."""
    deadline = time.monotonic() + patience_s
    while True:
        state = httpx.get(f"{url}/server_info").json()["internal_states"][0]
        busy = {key: state[key] for key in ("num_running_reqs", "num_queue_reqs") if state[key]}
        lost = {
            key: state[key] - state[f"free_{key}"] for key in ("slots", "pages") if state[key] != state[f"free_{key}"]
        }
        if not busy and not lost:
            return ()
        if time.monotonic() > deadline:
            return tuple(f"{value} {key}" for key, value in (busy | lost).items())
        time.sleep(0.02)


def _together(url: str) -> tuple[tuple[int, ...], ...]:
    def ask(body: dict[str, Any]) -> tuple[int, ...]:
        return tuple(httpx.post(f"{url}/generate", json=body, timeout=120).json()["output_ids"])

    with ThreadPoolExecutor(len(CANARIES)) as pool:
        return tuple(pool.map(ask, CANARIES))


def cpu_ms(pid: int) -> float:
    """Processor time of all threads that live, from the scheduler's nanosecond counts."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e6
