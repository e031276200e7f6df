"""The terminal, on which this program says everything and repeats no secret.

The surprise: what is guarded are `sys.stdout` and `sys.stderr` themselves, so that what libraries print (Hydra the
overrides of a job, Python a traceback, MLflow the address of its store) goes the same way as our own lines.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TextIO, cast

from experiments import secrets

if TYPE_CHECKING:
    from collections.abc import Iterable


class Masked:
    """A stream that masks what is written to it; in all else it is that stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(secrets.masked(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def guard() -> None:
    """What every program of ours begins with: learn what environment and command line hold, and mask it."""
    secrets.learn_environment()
    secrets.learn(sys.argv[1:])
    if not isinstance(sys.stdout, Masked):
        sys.stdout, sys.stderr = cast("TextIO", Masked(sys.stdout)), cast("TextIO", Masked(sys.stderr))
