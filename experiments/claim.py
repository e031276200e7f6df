"""A driver's claim on the attempt that it is measuring: one file that says somebody is at work, and on what.

Its lock tells a running attempt from one whose driver was killed: the kernel lets go of it whoever ends the driver, and
no process id is asked that may mean another process by now. The surprise: the file is far larger than its text. It
holds the room that the record will need, so that a cell which fails because the disk is full can still say so.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
from typing import TYPE_CHECKING, Any

from experiments.record import now

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILE = ".running"
TEXT_BYTES = 512
ROOM_BYTES = 256 * 2**10


class Claim:
    def __init__(self, handle: int) -> None:
        self._handle = handle

    def note(self, stage: str) -> None:
        """Written in place, so that it needs no room."""
        text = {"stage": stage, "since_utc": now(), "host": platform.node(), "pid": os.getpid()}
        os.pwrite(self._handle, json.dumps(text).encode().ljust(TEXT_BYTES), 0)

    def give_room(self) -> None:
        """To the record that is written next."""
        os.ftruncate(self._handle, TEXT_BYTES)


@contextlib.contextmanager
def claimed(attempt: Path) -> Iterator[Claim]:
    """Raises OSError where there is no room."""
    path = attempt / FILE
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(handle, 0, ROOM_BYTES)
        claim = Claim(handle)
        claim.note("start")
        fcntl.flock(handle, fcntl.LOCK_EX)  # last: who sees the lock reads the text
        yield claim
    finally:
        path.unlink()
        os.close(handle)


def running(attempt: Path) -> dict[str, Any] | None:
    """The claim on an attempt that is being measured right now; None where nobody is at work."""
    try:
        with (attempt / FILE).open("rb") as claim:
            try:
                fcntl.flock(claim, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                text: dict[str, Any] = json.loads(claim.read(TEXT_BYTES))
                return text
    except FileNotFoundError:
        pass
    return None


def abandoned(attempt: Path) -> dict[str, Any] | None:
    """What a killed driver was at here; None where none was killed, or none of its words came to the disk.

    For a caller that has seen that nobody is at work.
    """
    try:
        text: dict[str, Any] = json.loads((attempt / FILE).read_bytes()[:TEXT_BYTES])
    except (FileNotFoundError, ValueError):
        return None
    return text
