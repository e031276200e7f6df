"""One measurement at a time on a machine: a lock file that everybody who measures here takes.

The surprise: it is a kernel lock and not the file's existence, so that a driver that was killed blocks nobody.
"""

from __future__ import annotations

import fcntl
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from filelock import FileLock

NAME = "ling-bench.lock"
POLL_S = 0.25
"""Ten drivers may wait while another measures: they should not be heard."""


def lock_file(path: str | None) -> Path:
    return Path(path) if path else Path(tempfile.gettempdir()) / NAME


def measurement_lock(path: str | None, waiting: Callable[[str], None]) -> FileLock:
    """Acquired; the caller releases it. `waiting` is called once if another measurement holds it."""
    from filelock import FileLock, Timeout  # noqa: PLC0415 - doctor.py asks is_free() where nothing is installed

    file = lock_file(path)
    lock = FileLock(file, mode=0o666)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        waiting(f"another measurement holds {file}")
        lock.acquire(poll_interval=POLL_S)
    return lock


def is_free(file: Path) -> bool:
    if not file.exists():
        return True
    with file.open("rb") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
