"""Trains a draft, split as in serving-coupled training: half of the devices run the target, half train on its states.

With processes, each pair is a target process and a trainer process with a bounded queue between them, and trainers add
their gradients. On one device both halves are threads, each with its own stream. The loops are the same in both.
"""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from ling_runtime.training.dspark.board import Board
from ling_runtime.training.dspark.channel import PeerGoneError, open_channel
from ling_runtime.training.dspark.handover import Handover
from ling_runtime.training.dspark.meeting import join
from ling_runtime.training.dspark.parallel import Ranks
from ling_runtime.training.dspark.plan import Plan, TrainOptions
from ling_runtime.training.dspark.run import RunDirectory
from ling_runtime.training.dspark.supervise import SPAWN, Half, say, stopping_on_signals, together, wait_for
from ling_runtime.training.dspark.work import run_draft, run_target

if TYPE_CHECKING:
    from ling_runtime.training.dspark.channel import Inlet, Outlet


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
    options, logs = plan.options, RunDirectory(plan.options.out).logs
    channels = [open_channel(SPAWN, depth=options.depth, slot_bytes=plan.slot_bytes) for _ in range(options.pairs)]
    with tempfile.TemporaryDirectory() as directory, together() as halves:
        meeting = Path(directory) / "meeting"
        for pair, (outlet, inlet) in enumerate(channels):
            halves.append(Half.start(f"target-{pair}", logs, _target_process, options, pair, outlet, board, first))
            halves.append(
                Half.start(f"draft-{pair}", logs, _draft_process, options, pair, inlet, board, first, meeting)
            )
            outlet.close()  # the child's alone, so that it closes when the child dies
            inlet.close()
        wait_for(halves)


def _target_process(options: TrainOptions, pair: int, outlet: Outlet, board: Board, first: int) -> None:
    try:
        run_target(Plan(options), outlet, board, pair=pair, first=first)
    except PeerGoneError:
        if not board.stopping:
            raise


def _draft_process(options: TrainOptions, pair: int, inlet: Inlet, board: Board, first: int, meeting: Path) -> None:
    plan = Plan(options)
    inlet.device = plan.devices(pair)[1]
    with join(pair, options.pairs, meeting, inlet.device) as ranks:
        run_draft(plan, inlet, board, ranks, pair=pair, first=first)


def _train_in_threads(plan: Plan, board: Board, first: int) -> None:
    handover, faults = Handover(plan.options.depth), []

    def target_thread() -> None:
        try:
            run_target(plan, handover, board, pair=0, first=first)
        except PeerGoneError:
            pass
        except BaseException as error:  # noqa: BLE001 - carried to the thread that can raise it
            faults.append(error)
        finally:
            handover.close()

    thread = threading.Thread(target=target_thread, name="target")
    thread.start()
    try:
        run_draft(plan, handover, board, Ranks(), pair=0, first=first)
    except PeerGoneError:
        pass  # the target's own error says why
    finally:
        handover.close()
        thread.join()
    if faults:
        raise faults[0]
