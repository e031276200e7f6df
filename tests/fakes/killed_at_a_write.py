"""`python -m tests.fakes.killed_at_a_write DIRECTORY INDEX PROGRAM ARGUMENTS`: run it, and die before a write.

Writes are what Python's audit hooks tell (a file opened for writing, renamed, removed; a directory made) and what is
synced, below DIRECTORY. The surprise: to die before the next write is to die after the last one, so that INDEX by INDEX
every moment between two writes is met. A negative INDEX lives, and lists all writes on stderr.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

EVENTS = ("os.rename", "os.mkdir", "os.remove", "os.link", "os.truncate", "shutil.copyfile")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def watch(directory: str, index: int) -> None:
    """From now on; nothing takes it back."""
    seen: list[str] = []

    def write(event: str, path: Any) -> None:
        name = str(Path(f"/proc/self/fd/{path}").readlink()) if isinstance(path, int) else os.fsdecode(path)
        if not name.startswith(directory):
            return
        if len(seen) == index:
            os.kill(os.getpid(), signal.SIGKILL)
        seen.append(event)
        if index < 0:
            print(f"write {len(seen) - 1}: {event} {Path(name).relative_to(directory)}", file=sys.stderr, flush=True)

    def heard(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and args[2] and args[2] & WRITES and not isinstance(args[0], int):
            write("open", args[0])
        elif event in EVENTS:
            write(event, args[1] if event == "os.rename" else args[0])

    fsync = os.fsync

    def noted(handle: int) -> None:
        write("fsync", handle)
        fsync(handle)

    os.fsync = noted  # type: ignore[assignment]
    sys.addaudithook(heard)


if __name__ == "__main__":
    _, directory, index, program, *arguments = sys.argv
    watch(directory, int(index))
    sys.argv = [program, *arguments]
    sys.path.insert(0, str(Path(program).parent))
    runpy.run_path(program, run_name="__main__")
