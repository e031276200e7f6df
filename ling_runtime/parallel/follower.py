"""`python -m ling_runtime.parallel.follower FD`: a rank that does what rank 0 does, told by a socket at FD.

What it hears first is its order, then calls; what it says is that it is ready, its report when asked, and its error
before it ends. The surprise is how it ends with rank 0: the socket hangs up however that died, and a thread that waits
for this leaves at once, whatever the main thread is stuck in. Signals are rank 0's: a terminal or a supervisor sends
them to the whole group, and a rank that obeyed would be missed in the step that rank 0 still finishes.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import threading
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from ling_runtime.config import ConfigError

if TYPE_CHECKING:
    from ling_runtime.arguments import ServerConfig
    from ling_runtime.executor.build import ExecutorSettings


@dataclass(frozen=True, kw_only=True)
class Order:
    """Which rank of how many to be, where they meet, and what to load."""

    rank: int
    size: int
    port: int
    server: ServerConfig
    settings: ExecutorSettings


def leave_with(socket: int) -> None:
    """End this process when the other end of `socket` is closed."""
    poller = select.poll()
    poller.register(socket, 0)  # a hang-up is reported whatever is asked for
    poller.poll()
    os._exit(1)


def follow(said: Connection) -> None:
    """Load, say so, and do as told; never returns."""
    import torch  # noqa: PLC0415 - the watch over rank 0 begins before the seconds that this takes

    from ling_runtime import host  # noqa: PLC0415
    from ling_runtime.executor.build import load_executor  # noqa: PLC0415
    from ling_runtime.parallel.meeting import join, meeting_place  # noqa: PLC0415
    from ling_runtime.parallel.rank import Rank  # noqa: PLC0415

    order: Order = said.recv()
    config = order.server
    logging.basicConfig(
        level=config.log_level.upper(), format=f"%(asctime)s %(levelname)s rank {order.rank}: %(message)s"
    )
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    ranks = join(meeting_place(order.port, order.size), order.rank, order.size, config.device)
    executor = load_executor(config.model_path, order.settings, ranks)
    rank = Rank(executor, ranks, config.device)
    host.settle(config)
    said.send(("ready", rank.report()))
    while True:
        name, *args = said.recv()
        if name == "report":
            said.send(("report", rank.report()))
        else:
            rank.call(name, *args)


def main(socket: int) -> int:
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.SIG_IGN)
    threading.Thread(target=leave_with, args=(socket,), daemon=True).start()
    said = Connection(socket)
    try:
        follow(said)
    except EOFError:
        return 1  # rank 0 has gone
    except ConfigError as error:
        said.send(("refused", str(error)))
    except BaseException:  # noqa: BLE001 - it is told, and is the end
        said.send(("error", traceback.format_exc()))
    return 1


if __name__ == "__main__":
    code = main(int(sys.argv[1]))
    sys.stderr.flush()
    os._exit(code)  # communicators would wait for ranks that are gone
