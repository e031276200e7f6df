"""The bounded queue in both of its forms: what goes in comes out, a full one makes wait, a closed one says so."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
import torch

from ling_runtime.config import ConfigError
from ling_runtime.training.dspark import channel
from ling_runtime.training.dspark.batch import Batch
from ling_runtime.training.dspark.channel import Inlet, Outlet, PeerGoneError, batch_bytes, open_channel
from ling_runtime.training.dspark.handover import Handover
from ling_runtime.training.dspark.supervise import SPAWN

if TYPE_CHECKING:
    from collections.abc import Callable

DEPTH = 2


def batch(seed: int, rows: int = 3, length: int = 5) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, length, 8, generator=draw)
    ids = torch.randint(99, (rows, length), generator=draw)
    return Batch(ids, ids > 40, hidden.bfloat16(), hidden[..., :4].bfloat16())


def memory() -> tuple[Outlet, Inlet]:
    return open_channel(SPAWN, depth=DEPTH, slot_bytes=batch_bytes(15, 12, torch.bfloat16))


def threads() -> tuple[Handover, Handover]:
    handover = Handover(DEPTH)
    return handover, handover


@pytest.mark.parametrize("ends", [memory, threads])
def test_batches_of_any_shape_arrive_in_order(ends: Callable[[], tuple[Outlet, Inlet]]) -> None:
    sink, source = ends()
    for seed, shape in enumerate([(3, 5), (1, 15), (3, 5), (5, 3), (2, 2)]):
        sink.await_room()
        sink.put(batch(seed, *shape))
        source.await_batch()
        for got, sent in zip(source.get(), batch(seed, *shape), strict=True):
            assert got.dtype == sent.dtype
            assert torch.equal(got, sent)


@pytest.mark.parametrize("ends", [memory, threads])
def test_a_full_queue_makes_the_target_wait(ends: Callable[[], tuple[Outlet, Inlet]]) -> None:
    sink, source = ends()
    for seed in range(DEPTH):
        sink.await_room()
        sink.put(batch(seed))
    waiting = threading.Thread(target=sink.await_room)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    source.await_batch()
    source.get()
    waiting.join(5)
    assert not waiting.is_alive()


@pytest.mark.parametrize("ends", [memory, threads])
def test_batches_already_made_can_be_taken_when_the_target_has_ended(
    ends: Callable[[], tuple[Outlet, Inlet]],
) -> None:
    sink, source = ends()
    sink.await_room()
    sink.put(batch(1))
    sink.close()
    source.await_batch()
    assert torch.equal(source.get().ids, batch(1).ids)
    with pytest.raises(PeerGoneError):
        source.await_batch()


@pytest.mark.parametrize("ends", [memory, threads])
def test_a_target_learns_that_its_trainer_has_ended(ends: Callable[[], tuple[Outlet, Inlet]]) -> None:
    sink, source = ends()
    source.close()

    def go_on() -> None:
        for seed in range(DEPTH + 1):
            sink.await_room()
            sink.put(batch(seed))

    with pytest.raises(PeerGoneError):
        go_on()


def test_too_little_shared_memory_is_said_before_it_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "_shared_memory", lambda: 3 * 2**20)
    with pytest.raises(ConfigError, match=r"depth=4: 4 MiB of shared memory, of which 3 MiB are free"):
        open_channel(SPAWN, depth=4, slot_bytes=2**20)
