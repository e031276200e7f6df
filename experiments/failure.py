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
from experiments.errors import MEANING, CellError, Interrupted

if TYPE_CHECKING:
    from pathlib import Path

    from experiments.errors import FailureClass

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
