"""The ways a run can go wrong, each with the exit code it leads to (decisions, section 5) or the class of its failure.

The surprise: only three kinds cross a cell's border. A configuration error ends the program before anything starts, a
stopping signal and a disk that takes no record end it where it is; every other one becomes the `failure` of a record
(failure.py), and the next cell runs.
"""

from __future__ import annotations

import signal
from typing import ClassVar, Literal

FailureClass = Literal[
    "unfinished",
    "interrupted",
    "preempted",
    "time_limit",
    "cancelled",
    "launch",
    "server_died",
    "out_of_memory",
    "timeout",
    "protocol",
    "client",
    "measurement",
    "cleanup",
    "storage",
    "program",
]
MEANING: dict[FailureClass, str] = {
    "unfinished": "the driver was killed, or the power failed, before the cell ended",
    "interrupted": "TERM, HUP or INT to the driver",
    "preempted": "the job's node was wanted for another job; a requeued job measures the cell again",
    "time_limit": "the job's time limit came; a requeued job measures the cell again",
    "cancelled": "somebody cancelled the job",
    "launch": "the server ended before it was ready, or another server answered on its port",
    "server_died": "the server ended while it was in use; memory was not the reason",
    "out_of_memory": "an allocator said so in a log, or the kernel killed for want of memory",
    "timeout": "a phase passed its limit; the message names the key of the limit",
    "protocol": "a living server refused, or answered what the protocol does not allow",
    "client": "the load client failed or lost requests",
    "measurement": "counts are missing or contradict each other",
    "cleanup": "the server was stopped, and its processes or its GPU memory stayed",
    "storage": "the disk was full or could not be written",
    "program": "a fault of this program; the log's end is its traceback",
}
"""All there are."""


STOPPED: tuple[FailureClass, ...] = ("unfinished", "interrupted", "preempted", "time_limit", "cancelled")
"""Failures of drivers and jobs, which say nothing about a cell: it has yet to be measured."""


class ConfigError(ValueError):
    """Found before anything starts: exit 2. The message names the key and what it may be."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")


class CellError(RuntimeError):
    """One cell cannot be measured: its record is invalid, exit 3."""

    class_: ClassVar[FailureClass] = "program"

    def __init__(self, message: str, log_tail: str = "") -> None:
        super().__init__(message)
        self.log_tail = log_tail


class LaunchError(CellError):
    """The server did not come up as the one we asked for."""

    class_ = "launch"


class ServerDied(CellError):  # noqa: N818 - says what happened
    """The server ended while it was in use."""

    class_ = "server_died"


class OutOfMemory(CellError):  # noqa: N818
    """Server or load client ran out of memory, the machine's or a device's."""

    class_ = "out_of_memory"


class PhaseTimeout(CellError):  # noqa: N818
    """A phase passed its limit. The message names the phase and the key that sets the limit."""

    class_ = "timeout"


class EngineError(CellError):
    """A living server refused, or answered what the protocol does not allow."""

    class_ = "protocol"


class ClientError(CellError):
    """The load client failed or left no usable result."""

    class_ = "client"


class MeasurementError(CellError):
    """The numbers are there and cannot be right, or were not measured on what was asked for."""

    class_ = "measurement"


class CleanupError(CellError):
    """What the cell started did not go, or its GPU memory did not come back."""

    class_ = "cleanup"


class StorageError(CellError):
    """A record could not be written. What was there before is whole; nothing further can be recorded: exit 3."""

    class_ = "storage"


class Interrupted(BaseException):
    """TERM, HUP or INT to the driver; not an Exception, so that only the cell's border handles it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
