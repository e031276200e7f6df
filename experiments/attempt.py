"""What every attempt has in common, at a cell or at a decision: whatever happens inside, a record comes out.

The surprise: this raises only when the driver itself is told to stop, and even then the record is written first, or
when the disk takes no record. Every other failure is a value: `status: invalid` with class, phase, message and the
log's end.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from experiments.claim import claimed
from experiments.errors import Interrupted, StorageError
from experiments.failure import failed
from experiments.interrupts import shielded
from experiments.record import now, write_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from experiments.progress import Stages


def recorded(file: Path, opened: dict[str, Any], work: Callable[[], dict[str, Any]], stages: Stages) -> None:
    """Leaves in `file` what was `opened`, changed by what `work` returns or by its failure.

    Raises Interrupted and StorageError only.
    """
    started = time.monotonic()
    directory = file.parent
    stop: BaseException | None = None
    try:
        with claimed(directory) as claim:
            stages.follow(claim.note)
            try:
                write_json(file, opened)
                closing = work()
            except BaseException as error:  # noqa: BLE001 - a failure is a record
                closing = failed(error, stages.name, directory)
                stop = order_to_stop(error)
            claim.give_room()
            with shielded():
                close(file, opened, closing, {"stages": stages.seconds(), **_ending(started)})
    except OSError as error:
        raise StorageError(f"no record of {opened['name']} in {directory}: {error}") from error
    if stop:
        raise stop


def order_to_stop(error: BaseException) -> BaseException | None:
    """What ends the run and not only its cell; a failure of the clean-up that it led to does not undo a signal."""
    before: BaseException | None = error
    while before and not isinstance(before, Interrupted):
        before = before.__context__
    return before or (None if isinstance(error, Exception) else error)


def close(file: Path, opened: dict[str, Any], closing: dict[str, Any], end: dict[str, Any]) -> None:
    """The record, whole; if that is too much for the disk, a failure's, which is short. Raises OSError."""
    try:
        write_json(file, opened | closing | end)
    except OSError as error:
        write_json(file, opened | failed(error, "record", file.parent) | end)


def _ending(started: float) -> dict[str, Any]:
    return {"ended_utc": now(), "duration_s": round(time.monotonic() - started, 3)}
