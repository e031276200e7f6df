"""What files say, asked once: a plan of a thousand cells is prepared from the same few of them.

The surprise: nothing is remembered by name alone. A file that was changed in mid-study (size, time of change or inode)
is read again, so that whoever swaps weights between two cells gets another identity, as if nothing were remembered.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, wraps
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

More = TypeVarTuple("More")
T = TypeVar("T")


@dataclass(frozen=True)
class Stamp:
    """A file as it is now."""

    path: Path
    size: int
    changed_ns: int
    inode: int


def stamp(path: Path) -> Stamp:
    """Raises OSError."""
    found = path.stat()
    return Stamp(path, found.st_size, found.st_mtime_ns, found.st_ino)


def once(function: Callable[[Path, *More], T]) -> Callable[[Path, *More], T]:
    """For a function of a file's content, and of what else it is given. Its result is shared: nobody may change it."""

    @cache
    def known(file: Stamp, *more: *More) -> T:
        return function(file.path, *more)

    @wraps(function)
    def asked(path: Path, *more: *More) -> T:
        return known(stamp(path), *more)

    return asked
