"""The bounded queue between two threads of one process: both halves on one device, each on a stream of its own.

Nothing is copied. An event says when the target's stream has finished a batch, and the trainer's stream waits for it;
the memory of a batch goes back to the target's stream once the trainer's is done with it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from threading import Condition
from typing import TYPE_CHECKING

import torch

from ling_runtime.training.dspark.channel import PeerGoneError

if TYPE_CHECKING:
    from ling_runtime.training.dspark.batch import Batch


@dataclass
class Handover:
    """Both ends in one; at most `depth` batches lie between them."""

    depth: int
    _waiting: deque[tuple[Batch, torch.cuda.Event | None]] = field(default_factory=deque)
    _changed: Condition = field(default_factory=Condition)
    _closed: bool = False

    def await_room(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._waiting) < self.depth)
            if self._closed:
                raise PeerGoneError

    def put(self, batch: Batch) -> None:
        done = None
        if batch.ids.is_cuda:
            done = torch.cuda.Event()
            done.record()
        with self._changed:
            self._waiting.append((batch, done))
            self._changed.notify_all()

    def await_batch(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or bool(self._waiting))
            if not self._waiting:
                raise PeerGoneError

    def get(self) -> Batch:
        with self._changed:
            batch, done = self._waiting.popleft()
            self._changed.notify_all()
        if done is not None:
            here = torch.cuda.current_stream()
            here.wait_event(done)
            for value in batch:
                value.record_stream(here)
        return batch

    def close(self) -> None:
        """One half has ended; batches already made can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
