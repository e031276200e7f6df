"""What one step leaves for the next, on the device and by slot: the host names requests and never their lengths.

Tokens and lengths cross to the host through pinned copies that are read one step late, when the copy's event has long
passed; reading them at once would empty the queue of launches that hides the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ling_runtime.memory.device import page_table
from ling_runtime.memory.latent import pages_for

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.memory.caches import Caches


class Relay:
    """Lengths, bonus tokens, drafts [slots, most] and page tables [slots, pages]; slot 0 is padding's."""

    def __init__(self, slots: int, *, drafts: int, longest: int, device: torch.device) -> None:
        self.lengths = torch.zeros(slots, dtype=torch.int64, device=device)
        self.tokens = torch.zeros(slots, dtype=torch.int64, device=device)
        self.drafts = torch.zeros(slots, drafts, dtype=torch.int64, device=device)
        self.tables = torch.zeros(slots, pages_for(longest), dtype=torch.int64, device=device)

    def admit(self, slot: int, caches: Caches, *, length: int, token: int) -> None:
        """A request enters decoding with `length` committed positions and its first token."""
        self.put(slot, length=length, token=token)
        self.tables[slot] = page_table(caches.latent.table(slot), self.tables.shape[1], self.tables.device)

    def put(self, slot: int, *, length: int, token: int) -> None:
        """Where the host has taken a request meanwhile."""
        self.lengths[slot], self.tokens[slot] = length, token


@dataclass(frozen=True)
class Emitted:
    """One step's tokens [B, W] and accepted counts [B] on their way to the host; `done` None: they are there."""

    tokens: Tensor
    accepted: Tensor
    done: torch.cuda.Event | None

    def read(self) -> list[list[int]]:
        """The accepted tokens of each request; waits for the copy, which one step later is done."""
        if self.done is not None:
            self.done.synchronize()
        counts = self.accepted.tolist()
        return [row[:count] for row, count in zip(self.tokens.tolist(), counts, strict=True)]

    def before_overwriting(self) -> None:
        """Work queued from here on may write the results again."""
        if self.done is not None:
            torch.cuda.current_stream().wait_event(self.done)


class Outbox:
    """Host buffers for steps in flight, used in turn: `depth` steps may be unread."""

    def __init__(self, batch: int, rows: int, device: torch.device, depth: int = 3) -> None:
        pinned = device.type == "cuda"
        self._stream = torch.cuda.Stream() if pinned else None
        shapes = ((batch, rows), (batch,))
        self._buffers = [[torch.zeros(s, dtype=torch.int64, pin_memory=pinned) for s in shapes] for _ in range(depth)]
        self._turn = 0

    def send(self, choices: Tensor, accepted: Tensor) -> Emitted:
        """Copy behind the current stream's work and beside what follows it, without making the host wait."""
        tokens, counts = self._buffers[self._turn % len(self._buffers)]
        self._turn += 1
        if self._stream is None:
            tokens.copy_(choices)
            counts.copy_(accepted)
            return Emitted(tokens, counts, None)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            tokens.copy_(choices, non_blocking=True)
            counts.copy_(accepted, non_blocking=True)
            done = torch.cuda.Event()
            done.record()
        return Emitted(tokens, counts, done)


class Ring:
    """The same without copies: a part of the step writes its results here, and the step's end is what readers wait for.

    The device counts turns on its own; one `send` for each run of that part keeps the host's count equal to it.
    """

    def __init__(self, batch: int, rows: int, device: torch.device, depth: int = 3) -> None:
        self._pinned = device.type == "cuda"
        self.slots = torch.zeros(depth, batch, rows + 1, dtype=torch.int64, pin_memory=self._pinned)
        self.turn = torch.zeros(1, dtype=torch.int64, device=device)
        self._sent = 0

    def send(self, choices: Tensor, accepted: Tensor) -> Emitted:  # noqa: ARG002 - an outbox copies them
        slot = self.slots[self._sent % len(self.slots)]
        self._sent += 1
        done = None
        if self._pinned:
            done = torch.cuda.Event()
            done.record()
        return Emitted(slot[:, :-1], slot[:, -1], done)
