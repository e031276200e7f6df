"""The driver's end of a supervised child: start it, ask whether it lives, stop it, read its log's end.

The surprise: there is nothing to clean up after a crash. The pipe in `Supervised` is the leash; when this process ends
for any reason, it closes, and the supervisor takes the child down.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cached_property
from typing import TYPE_CHECKING, Self

from experiments import supervisor

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

    from experiments.command import Command

GRACE_S = 4.0
"""Between TERM and KILL. Client and server one after the other must be gone 10 s after a signal to the driver."""

TAIL_LINES = 30


class Supervised:
    """A running child below its supervisor; a context manager that stops it."""

    def __init__(self, process: subprocess.Popen[str], log: Path, grace_s: float) -> None:
        self._process = process
        self._grace_s = grace_s
        self.log = log

    @classmethod
    def start(cls, command: Command, *, log: Path, cores: Sequence[int] = (), grace_s: float = GRACE_S) -> Self:
        """`cores` empty leaves the child where the driver may run."""
        with log.open("ab") as errors:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", supervisor.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        assert process.stdin is not None
        job = {"argv": command.argv, "env": command.full_env(), "log": str(log), "cores": [*cores], "grace_s": grace_s}
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        return cls(process, log, grace_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def supervisor_pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def wait(self, timeout_s: float) -> int:
        """The child's return code once it has ended by itself. Raises subprocess.TimeoutExpired."""
        self._process.wait(timeout_s)
        return self._returncode

    def stop(self) -> int:
        """Stop the child and everything below it; returns its return code (minus the signal that ended it)."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(self._grace_s + 10.0)
        return self._returncode

    def tail(self, lines: int = TAIL_LINES) -> str:
        """The end of the child's log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    @cached_property
    def _returncode(self) -> int:
        """The supervisor's own code where the child could not even be started (its log then says why)."""
        assert self._process.stdout is not None
        reports = [json.loads(line) for line in self._process.stdout.read().splitlines()]
        return int(reports[-1]["returncode"]) if len(reports) == 2 else self._process.returncode
