"""Each switch of a decode step alone: off against on in turn, the post's figure beside it; `step_bench --ablation`.

The two sides of a switch are captured together and replayed in alternating blocks, so that a card that grows warm does
not favour one. A loop is the whole step as a host drives it: beside its time stand the host's own part of it and what
the device was idle, since what those switches move is the host's.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from experiments.ablation_table import BV_CURVE_US, SWITCHES, Mode, Step, Switch
from experiments.step_subject import ROOM, Bench, Setting, captured, nextn
from ling_runtime.executor.glue import Glue
from ling_runtime.executor.graph_memory import GraphMemory
from ling_runtime.executor.graph_settings import GraphSettings
from ling_runtime.executor.graph_step import GreedyStep
from ling_runtime.executor.relay import Relay
from ling_runtime.speculation.nextn import NextnProposer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ling_runtime.executor.relay import Emitted

BLOCKS = 4
DRAFTS, ACCEPT = 5, 3.25
WARM = 6
"""Steps before a loop is timed: a glue graph is recorded at the third."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """Milliseconds: medians, and the larger of the two sides' interquartile ranges."""

    switch: str
    step: str
    off_ms: float
    on_ms: float
    gain_ms: float
    spread_ms: float
    post: str
    loops: tuple[Loop, Loop] | None = None


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A host loop, by step: wall time, the host's own, the device's, and what it was idle."""

    mode: Mode
    step_ms: float
    host_ms: float
    device_ms: float
    idle_ms: float
    spread_ms: float


def measure(step: Callable[[], None], steps: int) -> list[float]:
    """Milliseconds of each of `steps` runs, queued ahead of the device, between events."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    marks[0].record()
    for mark in marks[1:]:
        step()
        mark.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in pairwise(marks)]


def spread(times: Sequence[float]) -> float:
    quartiles = statistics.quantiles(times, n=4)
    return quartiles[2] - quartiles[0]


def said(switch: Switch) -> str:
    if switch.post is None:
        return "-"
    return f"{switch.post.figure or 'no figure'} ({switch.post.section})"


def line(switch: Switch, step: str, off: Sequence[float], on: Sequence[float]) -> Line:
    low, high = statistics.median(off), statistics.median(on)
    return Line(
        switch=switch.name, step=step, off_ms=round(low, 4), on_ms=round(high, 4), gain_ms=round(low - high, 4),
        spread_ms=round(max(spread(off), spread(on)), 4), post=said(switch),
    )  # fmt: skip


def replayed(bench: Bench, step: Step, setting: Setting) -> Callable[[], None]:
    bench.reset()
    return nextn(bench, DRAFTS, setting)[0] if step == "5/6" else captured(bench, int(step), setting)[0]


def compared(bench: Bench, switch: Switch, step: Step, steps: int) -> Line:
    """Both sides in alternating blocks."""
    off, on = (replayed(bench, step, setting) for setting in (switch.off, switch.on))
    times: tuple[list[float], list[float]] = ([], [])
    for block in range(BLOCKS):
        for side in (0, 1) if block % 2 == 0 else (1, 0):
            times[side].extend(measure((off, on)[side], max(2, steps // BLOCKS)))
    return line(switch, step, *times)


class Driven:
    """A NEXTN 5/6 step of one request as the executor queues it, on a relay of its own."""

    def __init__(self, bench: Bench, setting: Setting) -> None:
        bench.reset()
        bench.kernels.select(setting.selection)
        self.relay = Relay(2, drafts=DRAFTS, longest=bench.context + ROOM, device=bench.device)
        self._bench, self._setting = bench, setting
        proposer = NextnProposer(bench.model, bench.nextn, bench.caches, steps=DRAFTS, slots=2)
        memory, settings = GraphMemory(), GraphSettings(simulated_accept_length=ACCEPT, switches=setting.switches)
        glue = Glue(memory.record)
        self._step = GreedyStep(bench.model, bench.caches, self.relay, proposer, 1, settings, memory, glue)
        self.start()

    def start(self) -> None:
        """Back to the context's end: every step has moved on by what it accepted."""
        self.relay.admit(self._bench.slot, self._bench.caches, length=self._bench.context, token=7)
        self._bench.caches.recurrent.pools.walked.fill_(-1)

    def __call__(self) -> Emitted:
        with self._setting.launching():
            return self._step([self._bench.slot])

    def queue(self) -> None:
        self()


def timed_loop(driven: Driven, mode: Mode, steps: int) -> tuple[list[float], list[float]]:
    """(wall, host's own) milliseconds of each step; what the host waits for the device is not its own."""
    driven.start()
    sent = driven()
    for _ in range(WARM):
        sent = driven()
    torch.cuda.synchronize()
    walls, hosts = [], []
    for _ in range(steps):
        begun = time.perf_counter()
        waited = 0.0
        if mode == "pinned":
            driven.relay.lengths.tolist()
            waited = time.perf_counter() - begun
        before, sent = sent, driven()
        reading = time.perf_counter()
        landed = sent if mode == "in turn" else before
        if landed.done is not None:
            landed.done.synchronize()
        waited += time.perf_counter() - reading
        landed.read()
        walls.append((time.perf_counter() - begun) * 1e3)
        hosts.append(walls[-1] - waited * 1e3)
    torch.cuda.synchronize()
    return walls, hosts


def looped(bench: Bench, setting: Setting, mode: Mode, steps: int) -> tuple[Loop, list[float]]:
    driven = Driven(bench, setting)
    device = statistics.median(measure(driven.queue, steps))
    walls, hosts = timed_loop(driven, mode, steps)
    step = statistics.fmean(walls)
    loop = Loop(
        mode=mode, step_ms=round(step, 4), host_ms=round(statistics.median(hosts), 4), device_ms=round(device, 4),
        idle_ms=0.0, spread_ms=round(spread(walls), 4),
    )  # fmt: skip
    return loop, walls


def loops(bench: Bench, switch: Switch, steps: int) -> Line:
    """Idle is against the least that either side shows the device to need: events between steps cost it a little, and a
    step launched kernel by kernel starves it while they run.
    """
    assert switch.loop is not None
    (off, low), (on, high) = (
        looped(bench, setting, mode, steps) for setting, mode in zip((switch.off, switch.on), switch.loop, strict=True)
    )
    busy = min(off.device_ms, on.device_ms, off.step_ms, on.step_ms)
    off, on = (replace(loop, idle_ms=round(max(0.0, loop.step_ms - busy), 4)) for loop in (off, on))
    one = line(switch, "loop 5/6", low, high)
    gain = round(off.step_ms - on.step_ms, 4)
    return replace(one, off_ms=off.step_ms, on_ms=on.step_ms, gain_ms=gain, loops=(off, on))


def curve(rows: int = 6) -> dict[int, float]:
    """Microseconds of a KDA window with its output projection by value columns of a program, cold states."""
    from experiments.tile_cases import walk_cases  # noqa: PLC0415 - only this line of the table needs them
    from experiments.tile_sweep import microseconds  # noqa: PLC0415

    cases = walk_cases(rows, tuple(BV_CURVE_US))
    return {bv: round(microseconds(case), 2) for bv, case in zip(BV_CURVE_US, cases, strict=True)}


def ablate(bench: Bench, names: Sequence[str], *, steps: int, out: Path) -> None:
    """Every switch of `names`, all if there are none; lines as they come, the whole table last and as JSON in `out`."""
    lines = []
    for switch in SWITCHES:
        if names and switch.name not in names:
            continue
        found = [loops(bench, switch, steps)] if switch.loop else []
        found += [] if switch.loop else [compared(bench, switch, step, steps) for step in switch.steps]
        print("\n".join(row(one) for one in found), flush=True)
        lines += found
    found_curve = curve() if not names or "bv-table" in names else {}
    record: dict[str, Any] = {
        "card": torch.cuda.get_device_name(),
        "context": bench.context,
        "lines": [asdict(one) for one in lines],
        "bv_curve_us": found_curve,
        "bv_curve_us_of_the_post": BV_CURVE_US,
    }
    out.write_text(json.dumps(record, indent=1) + "\n")
    print(table(lines, found_curve))


def row(one: Line) -> str:
    text = (
        f"{one.switch:<25}{one.step:<10}{one.off_ms:>8.3f}{one.on_ms:>8.3f}{one.gain_ms:>+8.3f}{one.spread_ms:>8.3f}"
        f"  {one.post}"
    )
    for loop in one.loops or ():
        text += (
            f"\n{'':<25}  {loop.mode:<8} host {loop.host_ms:.3f}, device {loop.device_ms:.3f}, idle {loop.idle_ms:.3f}"
        )
    return text


def table(lines: Sequence[Line], bv_curve: dict[int, float]) -> str:
    head = f"{'switch':<25}{'step':<10}{'off ms':>8}{'on ms':>8}{'gain':>8}{'iqr':>8}  the post"
    body = [head, *(row(one) for one in lines)]
    if bv_curve:
        body.append("BV at 6 rows, us a window with its projection (the post's kernel alone):")
        body += [f"  {bv:>4}{us:>8.2f} ({BV_CURVE_US[bv]})" for bv, us in bv_curve.items()]
    return "\n".join(body)
