"""What the record of a failed cell says about it: one class of a small closed set, phase, message, the log's end.

The class tells a reader what to do next, so it follows the evidence and not the exception: a client that stopped
because the disk was full is `storage`, and a request that failed because memory ran out is `out_of_memory`. The
surprise: the disk is asked when something fails, for a program that cannot write cannot log why.
"""

from __future__ import annotations

import errno
import shutil
import traceback
from typing import TYPE_CHECKING, Any

from experiments.clients.generate import ProtocolError
from experiments.errors import CellError, Interrupted

if TYPE_CHECKING:
    from pathlib import Path

    from experiments.errors import FailureClass

MEANING: dict[FailureClass, str] = {
    "unfinished": "the driver was killed, or the power failed, before the cell ended",
    "interrupted": "TERM, HUP or INT to the driver",
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

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
SCARCE_BYTES = 32 * 2**10
"""Free space below which a failure is the disk's. (The running attempt itself holds back more: claim.py.)"""


def unfinished() -> dict[str, Any]:
    """What stands in a record until its cell ends."""
    return {"class": "unfinished", "phase": "start", "message": MEANING["unfinished"], "log_tail": ""}


def failed(error: BaseException, phase: str, directory: Path) -> dict[str, Any]:
    """A failure's part of the record; `directory` is the attempt's. A bug carries its traceback as the log's end."""
    class_, message = classify(error), str(error) or type(error).__name__
    if class_ != "interrupted" and (free := shutil.disk_usage(directory).free) < SCARCE_BYTES:
        class_, message = "storage", f"{free} bytes are free in {directory}: {message}"
    match error:
        case CellError():
            tail = error.log_tail
        case Interrupted():
            tail = ""
        case _:
            tail = "".join(traceback.format_exception(error))
    return {
        "failure": {"class": class_, "phase": phase, "message": message, "log_tail": tail},
        "rule": "infrastructure",
        "reason": f"{phase}: {message}",
    }


def classify(error: BaseException) -> FailureClass:
    match error:
        case CellError():
            return error.class_
        case Interrupted():
            return "interrupted"
        case ProtocolError():
            return "protocol"
        case OSError() if error.errno in FULL:
            return "storage"
        case _:
            return "program"
