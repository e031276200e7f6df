"""One supervised server from launch to readiness to stop.

The surprise: /health counts for nothing here. Ready means that the port answers under the name only this server was
given and that a one-token generation came back, asked in the same loop that watches the child; a stale server on the
port can therefore never be measured in its place.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
import uuid
from typing import TYPE_CHECKING, NoReturn, Self

from experiments.clients.generate import ProtocolError
from experiments.engines.registry import engine_of
from experiments.errors import CellError, EngineError, Interrupted, LaunchError, OutOfMemory, PhaseTimeout, ServerDied
from experiments.gpu import used_mib, wait_for_memory
from experiments.limits import within
from experiments.ports import free_port, is_loopback, reached
from experiments.process import Supervised

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from types import TracebackType

    from experiments.spec import CellSpec

POLL_S = 0.1
PROBE_TIMEOUT_S = 2.0
DEATH_NOTICE_S = 0.5
"""How long a death takes to get from the child through its supervisor to us, at most."""


class Server:
    """A launched engine; a context manager that stops it."""

    def __init__(self, cell: CellSpec, *, log: Path, cores: Sequence[int] = ()) -> None:
        host = cell.engine.host
        if not is_loopback(host):
            print(f"warning: engine.host={host}: any machine that reaches this one can ask the server", file=sys.stderr)
        port = free_port(reached(host))
        self.name = f"{cell.model.name}-{uuid.uuid4().hex[:12]}"
        self.url = f"http://{reached(host)}:{port}"
        self.cell, self.engine = cell, engine_of(cell)
        self.command = self.engine.command(cell, port=port, served_name=self.name)
        self.client = self.engine.client(cell, self.url)
        self._gpu_mib = None if cell.engine.device == "cpu" else used_mib()
        self.process = Supervised.start(self.command, log=log, cores=cores)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        self.stop()
        if self._gpu_mib is not None and not isinstance(error, Interrupted):  # nobody comes after this one
            wait_for_memory(self._gpu_mib)

    def stop(self) -> None:
        """The process alone. Raises CleanupError."""
        self.process.stop()

    def wait_ready(self, timeout_s: float) -> float:
        """Seconds until the first generation. Raises LaunchError, OutOfMemory, PhaseTimeout, with the log's end."""
        start = time.monotonic()
        problem = "no answer"
        try:
            with within("launch", timeout_s):
                while True:
                    if not self.process.alive():
                        self._died(LaunchError, "before it was ready")
                    problem = self._problem()
                    if not problem:
                        return time.monotonic() - start
                    time.sleep(POLL_S)
        except PhaseTimeout as error:
            raise PhaseTimeout(f"{error}; last: {problem}", self.process.tail()) from error

    @property
    def supervisor_pid(self) -> int:
        return self.process.supervisor_pid

    def line(self) -> str:
        """The command that started it, to paste."""
        return self.command.shell()

    def log(self) -> str:
        """All that the server has written."""
        return self.process.log.read_text(errors="replace")

    def check_alive(self) -> None:
        """Raises ServerDied or OutOfMemory."""
        if not self.process.alive():
            self._died(ServerDied, "while it was in use")

    @contextlib.contextmanager
    def blamed(self) -> Iterator[None]:
        """A failure inside that is the server's own is raised as that, and any other with the end of its log."""
        try:
            yield
        except (CellError, ProtocolError) as error:
            self.blame()
            if isinstance(error, CellError) and error.log_tail:
                raise
            kind = type(error) if isinstance(error, CellError) else EngineError
            raise kind(str(error), self.process.tail()) from error

    def blame(self) -> None:
        """After a failed call: raise ServerDied or OutOfMemory if that is why it failed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(DEATH_NOTICE_S)
        self.check_alive()
        if said := self.process.memory_ran_out():
            raise OutOfMemory(f"the server ran out of memory while it was in use: {said}", self.process.tail())

    def _died(self, kind: type[CellError], when: str) -> NoReturn:
        code = self.process.stop()
        if said := self.process.memory_ran_out():
            raise OutOfMemory(f"the server ran out of memory {when} (code {code}): {said}", self.process.tail())
        raise kind(f"the server ended with code {code} {when}", self.process.tail())

    def _problem(self) -> str:
        """Why the server is not ready yet; empty when it is."""
        try:
            with contextlib.closing(self.engine.client(self.cell, self.url, timeout_s=PROBE_TIMEOUT_S)) as probe:
                names = probe.models()
            if names != [self.name]:
                raise LaunchError(f"{self.url} answers as {names}, not as {self.name}", self.process.tail())
            tokens = self.client.generate(text="1", max_new_tokens=1, ignore_eos=True).completion_tokens
        except ProtocolError as error:
            return str(error)
        return "" if tokens == 1 else f"asked for one token, got {tokens}"
