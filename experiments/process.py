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

from experiments import memory, secrets, supervisor
from experiments.errors import CleanupError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from experiments.command import Command

GRACE_S = 4.0
"""Between TERM and KILL. Client and server one after the other must be gone 10 s after a signal to the driver."""

REAP_S = 10.0
"""Between KILL and the end of all that was killed; only what the kernel holds on to takes longer."""

TAIL_LINES = 30
LOG_END_BYTES = 256 * 2**10
"""What is looked through for an allocator's message, which stands above the traces of all that failed after it."""


class Supervised:
    """A running child below its supervisor; a context manager that stops it."""

    def __init__(self, process: subprocess.Popen[str], log: Path, grace_s: float) -> None:
        self._process = process
        self._grace_s = grace_s
        self._kernel_kills = memory.kernel_kills()
        self.log = log

    @classmethod
    def start(
        cls,
        command: Command,
        *,
        log: Path,
        outputs: Sequence[Path] = (),
        cores: Sequence[int] = (),
        grace_s: float = GRACE_S,
    ) -> Self:
        """`cores` empty leaves the child where the driver may run; `outputs`: files among its arguments that it makes.

        Like its log, these are written without secrets.
        """
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
        job |= {"outputs": [*map(str, outputs)], "secrets": secrets.forms()}
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        return cls(process, log, grace_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
        """Stop the child and all below it; returns its code (minus the signal that ended it). Raises CleanupError."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(self._grace_s + REAP_S)
        except subprocess.TimeoutExpired as error:
            problem = f"what runs below supervisor {self._process.pid} cannot be stopped"
            raise CleanupError(problem, self.tail()) from error
        return self._returncode

    def tail(self, lines: int = TAIL_LINES) -> str:
        """The end of the child's log."""
        return "\n".join(self._log_end().splitlines()[-lines:])

    def memory_ran_out(self) -> str | None:
        """What says that this child, alive or ended, ran out of memory; None if nothing does."""
        said = memory.exhausted(self._log_end())
        return said or (None if self.alive() else memory.killed_by_kernel(self._returncode, self._kernel_kills))

    def _log_end(self) -> str:
        with self.log.open("rb") as content:
            content.seek(max(0, self.log.stat().st_size - LOG_END_BYTES))
            return content.read().decode(errors="replace")

    @cached_property
    def _returncode(self) -> int:
        """The supervisor's own code where the child could not even be started (its log then says why)."""
        assert self._process.stdout is not None
        reports = [json.loads(line) for line in self._process.stdout.read().splitlines()]
        return int(reports[-1]["returncode"]) if len(reports) == 2 else self._process.returncode
