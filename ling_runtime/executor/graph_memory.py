"""What an executor's recordings hold of the device: one pool for all of them, counted, and bounded where asked.

Recordings share a pool, so each takes over the temporaries of those before it: replays follow one another on one
stream, and what one leaves for another lies in buffers made outside. The surprise: what a recording takes is known only
once it has been made. One that exceeds the bound is dropped again, and no more are tried; what was recorded stays.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    Work = Callable[[], None]

log = logging.getLogger(__name__)
MIB = 1 << 20


class Graph(Protocol):
    def replay(self) -> None: ...
    def reset(self) -> None: ...


class Device(Protocol):
    """Where recordings are made."""

    def used(self) -> int:
        """Bytes of its memory that are taken, by anyone."""

    def record(self, work: Work) -> Graph:
        """Recording runs nothing."""


class Card:
    """The current CUDA device. The driver's share of a recording counts, and so does what another process takes while
    it is made; what the driver adds at a first replay does not.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def used(self) -> int:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # a recording begins with that, too, and would seem to give memory back
        free, total = torch.cuda.mem_get_info()
        return total - free

    def record(self, work: Work) -> Graph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            work()
        return graph


class GraphMemory:
    """The recordings of one executor; `bound` in bytes. Without a device nothing is recorded."""

    def __init__(self, bound: int | None = None, device: Device | None = None) -> None:
        self._bound, self._device = bound, device or (Card() if torch.cuda.is_available() else None)
        self._graphs, self._bytes, self._full = 0, 0, False
        self._refused: dict[str, None] = {}

    @property
    def open(self) -> bool:
        """Whether there is any point in recording."""
        return self._device is not None and not self._full

    def record(self, work: Work, name: str = "a refill") -> Work | None:
        """The replay of `work`, whose kernels have been compiled; None where it is to run launch by launch."""
        device = self._device
        if device is None:
            return None
        if self._full:
            self.refuse(name)
            return None
        before = device.used()
        graph = device.record(work)
        took = max(0, device.used() - before)
        if self._bound is not None and self._bytes + took > self._bound:
            graph.reset()
            self._full = True
            held, self._bytes = self._bytes, self._bytes + max(0, device.used() - before)
            log.warning("graph memory: %s takes %.1f MiB beside the %.1f in use", name, took / MIB, held / MIB)
            self.refuse(name)
            return None
        self._graphs, self._bytes = self._graphs + 1, self._bytes + took
        log.info("recorded %s: %.1f MiB; graphs: %d, %.1f MiB", name, took / MIB, self._graphs, self._bytes / MIB)
        return graph.replay

    def refuse(self, name: str) -> None:
        """Say, once for each `name`, that it is not recorded because the bound is reached."""
        if self._full and name not in self._refused:
            self._refused[name] = None
            assert self._bound is not None
            log.warning(
                "graph memory: %s runs launch by launch: the bound of %.1f MiB is reached; graphs that stay: %d",
                name, self._bound / MIB, self._graphs,
            )  # fmt: skip

    def report(self) -> dict[str, Any]:
        """`bytes` may exceed `bound` by what the pool kept of a dropped recording."""
        return {"graphs": self._graphs, "bytes": self._bytes, "bound": self._bound, "refused": list(self._refused)}
