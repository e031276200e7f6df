"""A server under eight clients for as long as you like: `python -m tests.ling_runtime.soak.soak --minutes 30`.

Prints its figures as JSON; exit code 1 when memory grows, a slot or a page is lost, steps become slower, or an answer
changes. The surprise: what is judged is processor time per step, because the clock also counts what other programs of
the machine take; the clock's figure is reported beside it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.ling_runtime.soak.gauges import Reading, drift, growth_mb, read
from tests.ling_runtime.soak.load import Load

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parents[3]
CHECKPOINT = ROOT / "ling_runtime" / "checkpoints" / "ling_tiny"
CLIENTS = 8


@dataclass(frozen=True, kw_only=True)
class Limits:
    growth_mb: float = 8.0
    drift: float = 0.05


@contextmanager
def served(*flags: str) -> Iterator[tuple[str, int, float]]:
    """URL, process id and seconds from start to ready of a server on the shipped checkpoint."""
    command = [sys.executable, "-m", "ling_runtime.server", "--model-path", str(CHECKPOINT), "--port", "0", *flags]
    began = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert " ready on " in line, "the server did not start"
        yield line.split(" on ", 1)[1].split(" ", 1)[0], process.pid, time.monotonic() - began
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def soak(seconds: float, readings: int, limits: Limits) -> dict[str, Any]:
    """The report of one soak, with what is wrong under "problems"."""
    flags = ("--speculative-algorithm", "NEXTN", "--num-threads", "1", "--context-length", "1024")
    with served(*flags) as (url, pid, ready_s):
        load = Load(url, CLIENTS)
        read(url, pid, 0)  # the first requests of a process load what the later ones share
        began = time.monotonic()
        taken = []
        with load.running():
            for number in range(1, readings + 1):
                time.sleep(max(0.0, began + number * seconds / readings - time.monotonic()))
                with load.turnstile.shut():
                    taken.append(read(url, pid, began))
        return report(taken, load, limits) | {"ready_s": round(ready_s, 2)}


def report(taken: Sequence[Reading], load: Load, limits: Limits) -> dict[str, Any]:
    figures = {
        "minutes": taken[-1].at_s / 60,
        "load_average": os.getloadavg()[1],
        "rss_mb": taken[-1].rss_mb,
        "growth_mb": growth_mb(taken),
        "step_ms": statistics.median(one.step_ms for one in taken),
        "step_drift": drift([one.step_ms for one in taken]),
        "step_cpu_ms": statistics.median(one.step_cpu_ms for one in taken),
        "step_cpu_drift": drift([one.step_cpu_ms for one in taken]),
    }
    return {
        **{key: round(value, 4) for key, value in figures.items()},
        "requests": dict(load.outcomes),
        "problems": [*load.problems[:10], *problems(taken, limits)],
        "readings": [_brief(one) for one in taken],
    }


def problems(taken: Sequence[Reading], limits: Limits) -> list[str]:
    found = [f"at {one.at_s:.0f} s not given back: {', '.join(one.unreturned)}" for one in taken if one.unreturned]
    found += [f"at {one.at_s:.0f} s another greedy answer" for one in taken if one.answers != taken[0].answers]
    grown, slower = growth_mb(taken), drift([one.step_cpu_ms for one in taken])
    if grown > limits.growth_mb:
        found.append(f"memory grew by {grown:.1f} MB; allowed: {limits.growth_mb}")
    if slower > limits.drift:
        found.append(f"steps became {slower:.1%} slower; allowed: {limits.drift:.0%}")
    for name in ("descriptors", "threads"):
        first, last = getattr(taken[0], name), getattr(taken[-1], name)
        if last > first + CLIENTS:
            found.append(f"{name} grew from {first} to {last}")
    return found


def _brief(one: Reading) -> dict[str, Any]:
    numbers = {key: value for key, value in dataclasses.asdict(one).items() if isinstance(value, int | float)}
    return {key: round(value, 2) for key, value in numbers.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--readings", type=int, default=60)
    arguments = parser.parse_args()
    result = soak(arguments.minutes * 60, arguments.readings, Limits())
    print(json.dumps(result, indent=1))
    return 1 if result["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
