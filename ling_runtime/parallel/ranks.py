"""The other ranks as rank 0 has them: started, told, asked, watched, and ended with it.

Followers are processes of their own with one socket each. The surprise is what a rank's death does: rank 0 may hang in
a sum that will never be complete, so the thread that hears of it ends this process, at once while the model loads, and
later by way of the engine, with a limit.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import queue
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, NoReturn, Self

from ling_runtime.parallel.follower import Order

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from ling_runtime.arguments import ServerConfig
    from ling_runtime.executor.build import ExecutorSettings
    from ling_runtime.parallel.communicator import Communicator

log = logging.getLogger(__name__)

END_S = 10.0
"""From the news that a rank is lost to the end of this process, whatever it is stuck in."""
REPORT_S = 60.0
FAILED, REFUSED = 1, 2
"""Exit codes of the server."""


class RankLostError(RuntimeError):
    """A rank ended, or went its own way; the message has its error."""


class Follower(threading.Thread):
    """A rank's process, and the thread that hears it."""

    def __init__(self, rank: int, lost: Callable[[str, int], None]) -> None:
        super().__init__(name=f"rank {rank}", daemon=True)
        self.rank, self._lost = rank, lost
        self.words: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.socket: Connection
        self.socket, theirs = multiprocessing.Pipe()
        command = [sys.executable, "-m", "ling_runtime.parallel.follower", str(theirs.fileno())]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        theirs.close()
        self.start()

    def run(self) -> None:
        word, code = "it said nothing", FAILED
        try:
            while True:
                kind, content = self.socket.recv()
                if kind in ("refused", "error"):
                    word, code = content.strip(), REFUSED if kind == "refused" else FAILED
                else:
                    self.words.put(content)
        except (EOFError, ConnectionResetError):
            ended = self.process.wait()
            self._lost(word if code == REFUSED else f"rank {self.rank} ended with {ended}: {word}", code)


class Ranks:
    """Ranks 1 to `size` - 1; a context manager that ends them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.on_loss: Callable[[RankLostError], None] | None = None
        """Takes over from ending the process at once."""
        self._ending = False
        self._lock = threading.Lock()
        self._followers = [Follower(rank, self.lose) for rank in range(1, size)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ending = True
        for follower in self._followers:
            follower.process.kill()
        for follower in self._followers:
            follower.process.wait()

    def join(self, server: ServerConfig, settings: ExecutorSettings) -> Communicator:
        """Send the others their orders and become rank 0."""
        from ling_runtime.parallel.meeting import gather_place, join  # noqa: PLC0415 - the others import torch meanwhile

        store = gather_place(self.size)
        for follower in self._followers:
            order = Order(rank=follower.rank, size=self.size, port=store.port, server=server, settings=settings)
            follower.socket.send(order)
        return join(store, 0, self.size, server.device)

    def wait(self) -> None:
        """Until all have loaded."""
        for follower in self._followers:
            about = follower.words.get()
            log.info("rank %s of %s is ready: process %s", about["rank"], about["size"], about["pid"])

    def tell(self, name: str, *args: Any) -> None:
        """Have the others make a call; returns before they have."""
        for follower in self._followers:
            try:
                follower.socket.send((name, *args))
            except OSError as error:
                raise RankLostError(f"rank {follower.rank} is gone") from error

    def reports(self) -> list[dict[str, Any]]:
        """What each has to say for itself, when it has made all calls so far."""
        self.tell("report")
        try:
            return [follower.words.get(timeout=REPORT_S) for follower in self._followers]
        except queue.Empty as error:
            raise RankLostError(f"a rank has not answered for {REPORT_S:g} s") from error

    def lose(self, message: str, code: int = FAILED) -> None:
        """End everything because of a rank, and say why."""
        with self._lock:
            if self._ending:
                return
            self._ending = True
        log.critical("%s", message)
        if self.on_loss is None:
            sys.stderr.write(f"ling_runtime.server: error: {message}\n")
            self.end(code)
        limit = threading.Timer(END_S, self.end, (code,))
        limit.daemon = True
        limit.start()
        self.on_loss(RankLostError(message))

    def end(self, code: int) -> NoReturn:
        """Leave without waiting for any rank, as the end of an interpreter would: communicators wait for the others."""
        self.__exit__()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
