"""The bounded queue between a target process and a trainer process.

States lie in a fixed number of slots of shared memory; two pipes carry slot numbers, full ones to the trainer and free
ones back, so a target that is ahead waits for a free slot. The surprise is what pipes are for: when the process at the
other end dies, however it dies, its end closes and the wait here ends at once.
"""

from __future__ import annotations

import math
import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from ling_runtime.config import ConfigError
from ling_runtime.training.dspark.batch import Batch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.context import BaseContext

    from torch import Tensor

_ALIGNED = 64


class PeerGoneError(Exception):
    """The process at the other end of the channel has ended."""


@dataclass(frozen=True)
class Piece:
    """Where a tensor lies in its slot."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def end(self) -> int:
        return self.offset + math.prod(self.shape) * self.dtype.itemsize

    def of(self, slot: Tensor) -> Tensor:
        return slot[self.offset : self.end].view(self.dtype).view(self.shape)


def layout(batch: Batch) -> list[Piece]:
    pieces, offset = [], 0
    for value in batch:
        pieces.append(Piece(offset, tuple(value.shape), value.dtype))
        offset = _aligned(pieces[-1].end)
    return pieces


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


@contextmanager
def _peer() -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError) as error:
        raise PeerGoneError from error


@dataclass
class Outlet:
    """The target's end."""

    slots: Tensor
    filled: Connection
    free: Connection
    _next: int = -1

    def await_room(self) -> None:
        """Until there is a free slot."""
        with _peer():
            self._next = self.free.recv()

    def put(self, batch: Batch) -> None:
        slot, pieces = self.slots[self._next], layout(batch)
        for value, piece in zip(batch, pieces, strict=True):
            piece.of(slot).copy_(value, non_blocking=True)
        if batch.ids.is_cuda:
            torch.cuda.current_stream().synchronize()
        with _peer():
            self.filled.send((self._next, pieces))

    def close(self) -> None:
        self.filled.close()
        self.free.close()


@dataclass
class Inlet:
    """The trainer's end: batches on `device`, copied on a stream of their own while the last step still runs."""

    slots: Tensor
    filled: Connection
    free: Connection
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    _next: tuple[int, list[Piece]] = (-1, [])

    def await_batch(self) -> None:
        """Until there is a full slot."""
        with _peer():
            self._next = self.filled.recv()

    def get(self) -> Batch:
        number, pieces = self._next
        batch = self._copy([piece.of(self.slots[number]) for piece in pieces])
        with suppress(OSError):  # a target that has made its last batch needs no slot back
            self.free.send(number)
        return batch

    def close(self) -> None:
        self.filled.close()
        self.free.close()

    def _copy(self, views: list[Tensor]) -> Batch:
        if self.device.type == "cpu":
            return Batch(*(view.clone() for view in views))
        copies, here = torch.cuda.Stream(self.device), torch.cuda.current_stream(self.device)
        with torch.cuda.stream(copies):
            values = [view.to(self.device, non_blocking=True) for view in views]
        copies.synchronize()
        for value in values:
            value.record_stream(here)
        return Batch(*values)


def batch_bytes(tokens: int, states: int, kept: torch.dtype) -> int:
    """Of a batch of `tokens` tokens with `states` numbers of precision `kept` each."""
    return _aligned(tokens * (torch.int64.itemsize + torch.bool.itemsize + states * kept.itemsize) + 4 * _ALIGNED)


def open_channel(context: BaseContext, *, depth: int, slot_bytes: int) -> tuple[Outlet, Inlet]:
    """Both ends of a channel of `depth` slots; ConfigError where the machine has no room for them."""
    room = _shared_memory()
    if room is not None and depth * slot_bytes > room:
        need, have = depth * slot_bytes / 2**20, room / 2**20
        raise ConfigError(
            f"depth={depth}: {need:.0f} MiB of shared memory, of which {have:.0f} MiB are free; lower depth or rows"
        )
    slots = torch.zeros(depth, slot_bytes, dtype=torch.uint8).share_memory_()
    filled_in, filled_out = context.Pipe(duplex=False)
    free_in, free_out = context.Pipe(duplex=False)
    for number in range(depth):
        free_out.send(number)
    return Outlet(slots, filled_out, free_in), Inlet(slots, filled_in, free_out)


def pin(slots: Tensor) -> bool:
    """Have the driver map `slots` for direct copies; False where it will not, which makes copies slower."""
    return int(torch.cuda.cudart().cudaHostRegister(slots.data_ptr(), slots.numel(), 0)) == 0


def _shared_memory() -> int | None:
    """Free bytes where shared memory lives; None where that is no file system."""
    try:
        stat = os.statvfs("/dev/shm")  # noqa: S108 - asked for its size, nothing is written by name
    except FileNotFoundError:
        return None
    return stat.f_bavail * stat.f_frsize
