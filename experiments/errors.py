"""The ways a run can go wrong, each with the exit code it leads to (decisions, section 5).

The surprise: none of them crosses a cell's border. A configuration error ends the program before anything starts; every
other one becomes the `failure` of a record, and the next cell runs.
"""

from __future__ import annotations

import signal


class ConfigError(ValueError):
    """Found before anything starts: exit 2. The message names the key and what it may be."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")


class CellError(RuntimeError):
    """One cell cannot be measured: its record is invalid, exit 3."""

    def __init__(self, message: str, log_tail: str = "") -> None:
        super().__init__(message)
        self.log_tail = log_tail


class LaunchError(CellError):
    """The server did not come up as the one we asked for."""


class ClientError(CellError):
    """The load client failed or left no usable result."""


class MeasurementError(CellError):
    """The numbers are there and cannot be right, or were not measured on what was asked for."""


class Interrupted(BaseException):
    """TERM, HUP or INT to the driver; not an Exception, so that only the cell's border handles it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
