"""The two loops of a run: one makes states, the other makes a draft of them, and neither knows where the other lives.

What connects them is anything with these methods: shared memory between processes, or a list between threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from ling_runtime.training.dspark.board import Board, Cell

if TYPE_CHECKING:
    from collections.abc import Callable

    from ling_runtime.training.dspark.batch import Batch
    from ling_runtime.training.dspark.stream import Stream
    from ling_runtime.training.dspark.target import Target
    from ling_runtime.training.dspark.trainer import Progress, Trainer


class Sink(Protocol):
    """Both calls raise PeerGoneError when nobody will take a batch any more."""

    def await_room(self) -> None: ...

    def put(self, batch: Batch) -> None: ...


class Source(Protocol):
    def await_batch(self) -> None:
        """Raises PeerGoneError when there will be none."""

    def get(self) -> Batch: ...


def make_states(target: Target, stream: Stream, sink: Sink, board: Board, *, pair: int, steps: range) -> None:
    for step in steps:
        batch = target(stream.part(step, pair))
        with board.waiting(pair, Cell.TARGET_WAITED, Cell.TARGET_SINCE):
            sink.await_room()
        sink.put(batch)
        board.add(pair, Cell.PRODUCED, 1)
        board.add(pair, Cell.TARGET_TOKENS, batch.ids.numel())


def train_draft(
    trainer: Trainer,
    source: Source,
    board: Board,
    *,
    pair: int,
    report: Callable[[Progress], None],
) -> None:
    """Train until the schedule's last step, or the one at which all trainers stop; `report` is called after each.

    At most two steps are in flight, so that the queue's bound is one on the trainer's side too.
    """
    before = None
    while trainer.step < min(trainer.recipe.schedule.steps, board.last_step):
        with board.waiting(pair, Cell.DRAFT_WAITED, Cell.DRAFT_SINCE):
            source.await_batch()
        batch = source.get()
        progress = trainer.train_step(batch)
        board.add(pair, Cell.CONSUMED, 1)
        board.add(pair, Cell.DRAFT_TOKENS, batch.ids.numel())
        if before is not None:
            before.synchronize()
        if batch.ids.is_cuda:
            before = torch.cuda.Event()
            before.record()
        report(progress)
        if pair == 0:
            board.settle(trainer.step)
