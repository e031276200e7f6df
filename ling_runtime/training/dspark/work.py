"""One half at work: what it loads, where it runs, and what it does beside its loop."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import torch

from ling_runtime.tensor_table import tensor_specs
from ling_runtime.training.dspark.channel import Inlet, Outlet, pin
from ling_runtime.training.dspark.halves import make_states, train_draft
from ling_runtime.training.dspark.progress import Reporter
from ling_runtime.training.dspark.run import RunDirectory
from ling_runtime.training.dspark.supervise import say
from ling_runtime.training.dspark.target import Target
from ling_runtime.training.dspark.trainer import Trainer
from ling_runtime.weights import load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ling_runtime.training.dspark.board import Board
    from ling_runtime.training.dspark.halves import Sink, Source
    from ling_runtime.training.dspark.parallel import Ranks
    from ling_runtime.training.dspark.plan import Plan
    from ling_runtime.training.dspark.trainer import Progress


def run_target(plan: Plan, sink: Sink, board: Board, *, pair: int, first: int) -> None:
    options, (device, _) = plan.options, plan.devices(pair)
    with _working_on(device, options.num_threads):
        target = Target(
            plan.target,
            load(options.model, tensor_specs(plan.target)),
            plan.recipe.draft.target_layer_ids,
            longest=plan.stream.longest,
            device=device,
            dtype=plan.target_dtype,
            kept=plan.kept,
        )
        _pin(sink, device)
        make_states(target, plan.stream, sink, board, pair=pair, steps=range(first, options.steps))


def run_draft(plan: Plan, source: Source, board: Board, ranks: Ranks, *, pair: int, first: int) -> None:
    options, (_, device) = plan.options, plan.devices(pair)
    with _working_on(device, options.num_threads):
        stored = load(options.model, tensor_specs(plan.target))
        shared = {n: value.float().to(device) for n, value in stored.items() if not n.startswith("model.layers.")}
        trainer, run = Trainer.start(plan.recipe, shared, ranks), RunDirectory(options.out)
        if first:
            run.restore(trainer)
        _pin(source, device)
        chores = Chores(plan, trainer, board, run)
        train_draft(trainer, source, board, pair=pair, report=chores)
        chores.finish()


class Chores:
    """What a trainer does beside training: figures, the clock, and on the first rank checkpoints and the draft."""

    def __init__(self, plan: Plan, trainer: Trainer, board: Board, run: RunDirectory) -> None:
        self._options, self._trainer, self._board, self._run = plan.options, trainer, board, run
        self._report = Reporter(trainer, board, run.records, plan.options.log_every, say)
        self._deadline = time.monotonic() + (plan.options.seconds or float("inf"))

    def __call__(self, progress: Progress) -> None:
        self._report(progress)
        if self._trainer.step % self._options.checkpoint_every == 0:
            self._store()
        if time.monotonic() > self._deadline:
            self._board.request_stop()

    def finish(self) -> None:
        self._store()
        if self._trainer.step == self._options.steps and not self._trainer.ranks.rank:
            self._run.export(self._trainer)

    def _store(self) -> None:
        if not self._trainer.ranks.rank:
            self._run.store(self._trainer)


@contextmanager
def _working_on(device: torch.device, threads: int) -> Iterator[None]:
    """This thread's device, and on a GPU a stream of its own."""
    torch.set_num_threads(threads)
    with ExitStack() as stack:
        if device.type == "cuda":
            torch.cuda.set_device(device)
            stack.enter_context(torch.cuda.stream(torch.cuda.Stream(device)))
        yield


def _pin(end: object, device: torch.device) -> None:
    if device.type == "cuda" and isinstance(end, Inlet | Outlet) and not pin(end.slots):
        say("shared memory could not be pinned: copies between the halves will be slower")
