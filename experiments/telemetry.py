"""GPUs while a cell is measured: clocks, temperature, power, load, what held the clocks down, and who else was there.

nvidia-smi samples by itself, once a second, as one supervised child for the whole window; its lines stay beside the
record and their spread goes into it. The surprise: a process that the driver names and this machine does not know is no
proof of a stranger, since in a container the driver may use other numbers; it is told apart and flags nothing.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
from typing import TYPE_CHECKING, Any, Self

import psutil

from experiments.command import Command
from experiments.process import Supervised

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path
    from types import TracebackType

FILE = "telemetry.csv"
PERIOD_MS = 1000
FIGURES = {
    "SM clock MHz": "clocks.sm",
    "memory clock MHz": "clocks.mem",
    "temperature C": "temperature.gpu",
    "power W": "power.draw",
    "busy %": "utilization.gpu",
}
REASONS = "clocks_throttle_reasons.active"
"""A mask; newer drivers keep the name."""
THROTTLES = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "thermal slowdown, software",
    0x40: "thermal slowdown, hardware",
    0x80: "power brake",
}
"""Bits that mean a slower clock than wanted; idling and chosen clocks are others."""
FORMAT = "--format=csv,noheader,nounits"


class Telemetry:
    """A context manager around the window. Without nvidia-smi it does nothing and has seen nothing."""

    def __init__(self, directory: Path, cores: Sequence[int]) -> None:
        self._file = directory / FILE
        self._cores = cores
        self._sampler: Supervised | None = None
        self.seen: dict[str, Any] | None = None

    def __enter__(self) -> Self:
        if shutil.which("nvidia-smi"):
            query = f"--query-gpu={','.join(['index', *FIGURES.values(), REASONS])}"
            command = Command(("nvidia-smi", query, FORMAT, f"--loop-ms={PERIOD_MS}"))
            self._sampler = Supervised.start(command, log=self._file, cores=self._cores)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sampler is None:
            return
        apps = processes() if kind is None else ()
        self._sampler.stop()
        self.seen = {"gpus": spread(self._file.read_text().splitlines()), "foreign": [*foreign(apps)]}


def spread(lines: Iterable[str]) -> list[dict[str, Any]]:
    """By GPU: samples, least, mean and most of each figure, and what throttled it in how many samples."""
    by_gpu: dict[str, list[list[str]]] = {}
    for line in lines:
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == len(FIGURES) + 2:  # the last line may have been cut when the sampler was stopped
            by_gpu.setdefault(parts[0], []).append(parts[1:])
    return [_of_gpu(index, samples) for index, samples in sorted(by_gpu.items())]


def processes() -> list[dict[str, str]]:
    """What computes on any GPU now, in the driver's words."""
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory,process_name", FORMAT]
    answer = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    lines = answer.stdout.splitlines() if answer.returncode == 0 else []
    rows = [line.split(",", 2) for line in lines if line.count(",") >= 2]
    return [dict(zip(("pid", "used_mib", "name"), (part.strip() for part in row), strict=True)) for row in rows]


def foreign(apps: Iterable[dict[str, str]]) -> Iterator[dict[str, Any]]:
    """Those that are neither this process nor below it."""
    own = psutil.Process()
    ours = {process.pid for process in (own, *own.children(recursive=True))}
    for app in apps:
        if int(app["pid"]) not in ours:
            yield {**app, "known_here": psutil.pid_exists(int(app["pid"]))}


def remarks(seen: dict[str, Any] | None) -> Iterator[str]:
    """What a reader should know beside the figures."""
    for gpu in seen["gpus"] if seen else ():
        yield from (f"GPU {gpu['index']}: {reason}" for reason in gpu["throttled"])
    for app in seen["foreign"] if seen else ():
        if app["known_here"]:
            yield f"another process was on a GPU: {app['name']}, pid {app['pid']}, {app['used_mib']} MiB"


def _of_gpu(index: str, samples: Sequence[Sequence[str]]) -> dict[str, Any]:
    columns = dict(zip(FIGURES, zip(*samples, strict=True), strict=False))
    figures = {name: _span(column) for name, column in columns.items()}
    masks = [int(sample[-1], 16) for sample in samples if sample[-1].startswith("0x")]
    counts = {reason: sum(bool(mask & bit) for mask in masks) for bit, reason in THROTTLES.items()}
    throttled = [f"{reason} in {count} of {len(masks)} samples" for reason, count in counts.items() if count]
    known = {name: span for name, span in figures.items() if span}
    return {"index": index, "samples": len(samples), "figures": known, "throttled": throttled}


def _span(column: Iterable[str]) -> dict[str, float] | None:
    """None where the driver has no answer ("[N/A]")."""
    values = [float(text) for text in column if text.replace(".", "", 1).isdigit()]
    return {"min": min(values), "mean": statistics.fmean(values), "max": max(values)} if values else None
