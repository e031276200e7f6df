"""Trains a draft, split as in serving-coupled training: half of the devices run the target, half train on its states.

With processes, each pair is a target process and a trainer process with a bounded queue between them, and trainers add
their gradients. On one device both halves are threads, each with its own stream. The loops are the same in both.
"""

from __future__ import annotations

import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ling_runtime.training.dspark.board import Board
from ling_runtime.training.dspark.channel import Inlet, Outlet, PeerGoneError, open_channel, pin
from ling_runtime.training.dspark.halves import make_states, train_draft
from ling_runtime.training.dspark.handover import Handover
from ling_runtime.training.dspark.meeting import join
from ling_runtime.training.dspark.plan import Plan, TrainOptions
from ling_runtime.training.dspark.progress import Reporter
from ling_runtime.training.dspark.run import RunDirectory
from ling_runtime.training.dspark.supervise import SPAWN, Half, say, stopping_on_signals, wait_for
from ling_runtime.training.dspark.target import Target
from ling_runtime.training.dspark.trainer import Trainer
from ling_runtime.weights import load, tensor_specs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ling_runtime.training.dspark.halves import Sink, Source
    from ling_runtime.training.dspark.parallel import Ranks
    from ling_runtime.training.dspark.trainer import Progress


def train(options: TrainOptions) -> int:
    """Run to the end, to a signal or to the time limit; the exit code, 0 or 128 + the signal's number."""
    plan, run = Plan(options), RunDirectory(options.out)
    plan.devices(0)
    stream = plan.stream
    first, board = run.begin(options), Board.of(options.pairs)
    say(
        f"draft of {options.block_size}: steps {first} to {options.steps}, {options.pairs} x {stream.rows} x "
        f"{stream.length} tokens each, halves as {'threads' if options.in_threads else 'processes'} on {options.device}"
    )
    with stopping_on_signals(board.request_stop) as signals:
        (_train_in_threads if options.in_threads else _train_in_processes)(plan, board, first)
    reached = run.step()
    if reached < options.steps:
        say(f"stopped at step {reached} of {options.steps}; go on with --resume")
    else:
        say(f"draft in {run.draft}")
    return 128 + signals[0] if signals else 0


def _train_in_processes(plan: Plan, board: Board, first: int) -> None:
    options, halves = plan.options, []
    logs = RunDirectory(options.out).logs
    with tempfile.TemporaryDirectory() as directory:
        meeting = Path(directory) / "meeting"
        for pair in range(options.pairs):
            outlet, inlet = open_channel(SPAWN, depth=options.depth, slot_bytes=plan.slot_bytes)
            halves.append(Half.start(f"target-{pair}", logs, run_target, options, pair, outlet, board, first))
            halves.append(Half.start(f"draft-{pair}", logs, run_draft, options, pair, inlet, board, first, meeting))
            outlet.close()
            inlet.close()
        wait_for(halves)


def _train_in_threads(plan: Plan, board: Board, first: int) -> None:
    handover, faults = Handover(plan.options.depth), []

    def target_half() -> None:
        try:
            _make_states(plan, handover, board, pair=0, first=first)
        except PeerGoneError:
            pass
        except BaseException as error:  # noqa: BLE001 - carried to the thread that can raise it
            faults.append(error)
        finally:
            handover.close()

    thread = threading.Thread(target=target_half, name="target")
    thread.start()
    try:
        with join(0, 1, Path(), plan.devices(0)[1]) as ranks:
            _train_draft(plan, handover, board, pair=0, first=first, ranks=ranks)
    except PeerGoneError:
        pass
    finally:
        handover.close()
        thread.join()
    if faults:
        raise faults[0]


# ---------------------------------------------------------------------------------------------------------------------
# One half, in a process or a thread of its own


def run_target(options: TrainOptions, pair: int, outlet: Outlet, board: Board, first: int) -> None:
    try:
        _make_states(Plan(options), outlet, board, pair=pair, first=first)
    except PeerGoneError:
        if not board.stopping:
            raise


def run_draft(options: TrainOptions, pair: int, inlet: Inlet, board: Board, first: int, meeting: Path) -> None:
    plan = Plan(options)
    inlet.device = plan.devices(pair)[1]
    with join(pair, options.pairs, meeting, inlet.device) as ranks:
        _train_draft(plan, inlet, board, pair=pair, first=first, ranks=ranks)


def _make_states(plan: Plan, sink: Sink, board: Board, *, pair: int, first: int) -> None:
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


def _train_draft(
    plan: Plan,
    source: Source,
    board: Board,
    *,
    pair: int,
    first: int,
    ranks: Ranks,
) -> None:
    options, (_, device) = plan.options, plan.devices(pair)
    with _working_on(device, options.num_threads):
        stored = load(options.model, tensor_specs(plan.target))
        shared = {
            name: value.float().to(device) for name, value in stored.items() if not name.startswith("model.layers.")
        }
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
