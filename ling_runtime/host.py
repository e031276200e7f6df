"""What may hold up the host between two steps, as settings: the engine thread's core, and Python's collector.

On a card the host queues a step while the one before it runs, and has that step's time to spare; a collection or a move
to another core that takes longer leaves the device without work. The surprise: nothing here is on by itself but the
freeze, at start and at each flush. Each of these is a change to be measured, and `/server_info` shows what is in force
and not what was asked for.
"""

from __future__ import annotations

import gc
import os
import time
from typing import TYPE_CHECKING, Any

from ling_runtime.config import ConfigError

if TYPE_CHECKING:
    from ling_runtime.arguments import ServerConfig

GENERATIONS = 3
PYTHONS_OWN = gc.get_freeze_count()
"""Python 3.12 keeps some hundreds of its own objects frozen, and finds a few more as it goes."""


def check(config: ServerConfig) -> None:
    """ConfigError for a core that this process may not use."""
    core, allowed = config.engine_core, _cores(0)
    if core is not None and core not in allowed:
        cores = ", ".join(map(str, allowed)) or "none, for this system pins no threads"
        raise ConfigError(f"--engine-core {core}: this process may use {cores} (engine.num_threads cores under run.py)")


def check_threshold(threshold: tuple[int, ...] | None) -> None:
    """ConfigError for what Python would not take."""
    if threshold and (len(threshold) > GENERATIONS or min(threshold) < 0):
        given = " ".join(map(str, threshold))
        raise ConfigError(f"--gc-threshold {given}: allowed: one to {GENERATIONS} numbers from 0 on; 0 first: never")


class Collections:
    """How often Python collected since it was last settled, and its longest pause."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.count, self.longest_ms, self._begun = 0, 0.0, 0.0

    def __call__(self, phase: str, _info: dict[str, int]) -> None:
        """As one of `gc.callbacks`."""
        if phase == "start":
            self._begun = time.perf_counter()
        else:
            self.count += 1
            self.longest_ms = max(self.longest_ms, (time.perf_counter() - self._begun) * 1e3)


_collections = Collections()


def settle(config: ServerConfig) -> None:
    """Before the first request, and at a flush: what is there now lives as long as the process.

    Unfrozen, each full collection walks all of it (tens of milliseconds with torch loaded) in the middle of a step; and
    what first requests bring, kernels and what was imported for them, is there only at the flush behind them.
    """
    gc.collect()
    if not config.disable_gc_freeze:
        gc.freeze()
    if config.gc_threshold:
        gc.set_threshold(*config.gc_threshold)
    _collections.begin()
    if _collections not in gc.callbacks:
        gc.callbacks.append(_collections)


def pin(core: int | None) -> None:
    """The calling thread, alone, to one core; others of the process keep theirs."""
    if core is not None:
        os.sched_setaffinity(0, {core})


def report() -> dict[str, Any]:
    """In force now; cores are the calling thread's."""
    return {
        "engine_cores": _cores(0),
        "process_cores": _cores(os.getpid()),
        "gc_frozen": gc.get_freeze_count() > 2 * PYTHONS_OWN,
        "gc_threshold": list(gc.get_threshold()),
        "gc_collections": _collections.count,
        "gc_longest_ms": round(_collections.longest_ms, 3),
    }


def _cores(thread: int) -> list[int]:
    """Those that a thread may use, 0 being the caller; none where the system does not tell (macOS)."""
    return sorted(os.sched_getaffinity(thread)) if hasattr(os, "sched_getaffinity") else []
