"""One greedy step under DSPARK: a block of drafts, as many verified rows as planned, and their injection.

Static verification takes the whole window. Under a schedule the host chooses among windows of a few sizes, all
recorded before the first is chosen; all requests of a step verify as many rows as the one that needs most, and a row
that is computed may be accepted, planned or not. The surprise is when the host reads confidences. The causal planner
decides by those of this very block, so the host waits for the draft and the device for the host; the global one counts
on an earlier step by design, so it gets what has long been copied, and the host stays ahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ling_runtime.executor.dspark_graphs import BlockStep, InjectStep
from ling_runtime.executor.graphs import Replays, VerifyStep
from ling_runtime.executor.relay import Emitted, Outbox

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from ling_runtime.executor.graph_memory import GraphMemory
    from ling_runtime.executor.graph_settings import GraphSettings
    from ling_runtime.executor.relay import Relay
    from ling_runtime.executor.step import Slot
    from ling_runtime.memory.caches import Caches
    from ling_runtime.model.ling import Ling
    from ling_runtime.speculation.dspark.proposer import DsparkProposer
    from ling_runtime.speculation.interface import Schedule

FINE = 9
"""Rows up to which every window has a graph of its own; above, every second one and the last."""


def tier(rows: int, most: int) -> int:
    """Rows of the smallest window that is recorded and holds `rows`."""
    return rows if rows <= FINE or rows == most else min(rows + (rows + 1) % 2, most)


class Window:
    """Verification and injection of `rows` rows, on the slots that all windows share."""

    def __init__(self, verify: VerifyStep, inject: InjectStep, outbox: Outbox) -> None:
        self.verify, self._inject, self._outbox = verify, inject, outbox
        self._sent = Emitted(*verify.results, None)

    def record(self, replays: Replays) -> None:
        replays.step(self.verify)
        replays.step(self._inject)

    def run(self, replays: Replays) -> Emitted:
        self._sent.before_overwriting()
        replays.step(self.verify)
        self._sent = self._outbox.send(*self.verify.results)
        replays.step(self._inject)
        return self._sent


@dataclass(frozen=True)
class Read:
    """Confidences [B, g] of `requests` on their way to the host."""

    requests: tuple[Slot, ...]
    confidence: Tensor
    done: torch.cuda.Event | None

    def wait(self) -> Tensor:
        if self.done is not None:
            self.done.synchronize()
        return self.confidence


class TieredStep:
    """Draft, verify and inject for `batch` requests, in the order in which they are replayed."""

    def __init__(
        self,
        model: Ling,
        caches: Caches,
        relay: Relay,
        proposer: DsparkProposer,
        batch: int,
        settings: GraphSettings,
        memory: GraphMemory,
    ) -> None:
        self._model, self._caches, self._relay, self._proposer = model, caches, relay, proposer
        self._batch, self._settings, self._most = batch, settings, proposer.steps + 1
        self._slots = torch.zeros(batch, dtype=torch.int64, device=model.device)
        self._named: tuple[int, ...] = ()
        self._windows: dict[int, Window] = {}
        self._draft = BlockStep(model, proposer, relay, self._window(self._most).verify)
        self._replays = Replays(model.kernels, memory)
        pinned = model.device.type == "cuda"
        self._host = [torch.zeros(batch, proposer.steps, pin_memory=pinned) for _ in range(2)]
        self._last: Read | None = None

    def __call__(self, slots: Sequence[int], requests: Sequence[Slot], schedule: Schedule | None) -> Emitted:
        """Queue one step of `slots`, whose requests these are."""
        if tuple(slots) != self._named:
            self._named = tuple(slots)
            self._slots.copy_(torch.tensor(slots))
        self._replays.step(self._draft)
        rows = self._most if schedule is None else self._planned(slots, tuple(requests), schedule)
        return self._window(rows).run(self._replays)

    def prepare(self) -> None:
        """Run every window once on padding's slot, which records it where there is a device: later, with a request in
        it, a recording would cost that request a second.
        """
        calls, self._named = dict(self._model.kernels.calls), ()
        self._slots.zero_()
        tiers = {tier(rows, self._most) for rows in range(1, self._most + 1)}
        for rows in sorted(tiers, reverse=True):  # the largest first: the others fit into its temporaries
            self._window(rows).record(self._replays)
        self._model.kernels.calls.update(calls)

    def _planned(self, slots: Sequence[int], requests: tuple[Slot, ...], schedule: Schedule) -> int:
        if schedule.reads == "nothing":
            return self._most
        last, self._last = self._last, self._read(requests)
        if schedule.reads == "this":
            return self._tier(schedule.lengths(slots, self._last.wait()))
        if last is None or any(one is not other for one, other in zip(last.requests, requests, strict=True)):
            return self._most
        return self._tier(schedule.lengths(slots, last.wait()))

    def _tier(self, lengths: tuple[int, ...]) -> int:
        return tier(max(lengths), self._most)

    def _read(self, requests: tuple[Slot, ...]) -> Read:
        """Copy this step's confidences without making the host wait; the copy before stays readable."""
        self._host.reverse()
        self._host[0].copy_(self._draft.confidence, non_blocking=True)
        done = None
        if self._host[0].is_pinned():
            done = torch.cuda.Event()
            done.record()
        return Read(requests, self._host[0], done)

    def _window(self, rows: int) -> Window:
        if rows not in self._windows:
            verify = VerifyStep(
                self._model, self._caches, self._relay, batch=self._batch, rows=rows,
                simulated=self._settings.simulated_accept_length, capture=self._proposer.capture, slots=self._slots,
            )  # fmt: skip
            outbox = Outbox(self._batch, rows, self._model.device)
            self._windows[rows] = Window(verify, InjectStep(self._proposer, verify), outbox)
        return self._windows[rows]
