"""One supervised server from launch to readiness to stop.

The surprise: /health counts for nothing here. Ready means that the port answers under the name only this server was
given and that a one-token generation came back, asked in the same loop that watches the child; a stale server on the
port can therefore never be measured in its place.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
import uuid
from typing import TYPE_CHECKING, Self

from experiments.clients.generate import GenerateClient, ProtocolError
from experiments.engine import server_command
from experiments.errors import LaunchError
from experiments.gpu import used_mib, wait_for_memory
from experiments.ports import HOST, free_port
from experiments.process import Supervised

if TYPE_CHECKING:
    from collections.abc import Sequence
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
        port = free_port()
        self.name = f"{cell.model.name}-{uuid.uuid4().hex[:12]}"
        self.url = f"http://{HOST}:{port}"
        self.command = server_command(cell, port=port, served_name=self.name)
        self.client = GenerateClient(self.url)
        self._gpu_mib = None if cell.engine.device == "cpu" else used_mib()
        self.process = Supervised.start(self.command, log=log, cores=cores)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        self.process.stop()
        if self._gpu_mib is not None:
            wait_for_memory(self._gpu_mib)

    def wait_ready(self, timeout_s: float) -> float:
        """Seconds until the first generation. Raises LaunchError with the log's end."""
        start = time.monotonic()
        problem = ""
        while time.monotonic() - start < timeout_s:
            if not self.process.alive():
                code = self.process.stop()
                raise LaunchError(f"the server ended with code {code} before it was ready", self.process.tail())
            problem = self._problem(timeout_s - (time.monotonic() - start))
            if not problem:
                return time.monotonic() - start
            time.sleep(POLL_S)
        raise LaunchError(f"the server was not ready after {timeout_s:g} s; last: {problem}", self.process.tail())

    def check_alive(self) -> None:
        if not self.process.alive():
            code = self.process.stop()
            raise LaunchError(f"the server ended with code {code} while it was in use", self.process.tail())

    def blame(self) -> None:
        """After a failed call: raise LaunchError if it failed because the server died."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(DEATH_NOTICE_S)
        self.check_alive()

    def _problem(self, left_s: float) -> str:
        """Why the server is not ready yet; empty when it is."""
        try:
            with GenerateClient(self.url, timeout_s=min(PROBE_TIMEOUT_S, left_s)) as probe:
                names = probe.models()
            if names != [self.name]:
                raise LaunchError(f"{self.url} answers as {names}, not as {self.name}", self.process.tail())
            with GenerateClient(self.url, timeout_s=left_s) as probe:
                tokens = probe.generate(text="1", max_new_tokens=1, ignore_eos=True).completion_tokens
        except ProtocolError as error:
            return str(error)
        return "" if tokens == 1 else f"asked for one token, got {tokens}"
