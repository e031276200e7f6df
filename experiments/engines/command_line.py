"""A server's command line from flags and their values, the same for every engine that takes flags.

The surprise: `engine.command` replaces the program and keeps the flags, so that another build of the same server (a
second checkout, a wrapper such as numactl, a fake in the tests) is measured under identical arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from experiments.spec import CellSpec

Value = str | int | float | bool | None
"""True: a bare flag. False and None: left out."""


def argv(cell: CellSpec, program: Sequence[str], flags: Mapping[str, Value]) -> tuple[str, ...]:
    return (*(cell.engine.command or program), *spelled(flags))


def spelled(flags: Mapping[str, Value]) -> Iterator[str]:
    for flag, value in flags.items():
        if value is True:
            yield flag
        elif value is not None and value is not False:
            yield from (flag, str(value))


def shown(value: Any) -> str | None:
    """What a server says a flag is, as it would stand on a command line; None for what is off."""
    match value:
        case None | False:
            return None
        case True:
            return ""
        case list() | tuple():
            return " ".join(map(str, value))
        case _:
            return str(value)
