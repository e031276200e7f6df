"""Who wins where the command line and a preset's cell speak of one key.

The surprise: neither always. What a cell says is changed where it says it, and there alone: the flag of a speculative
cell is nothing for the cell without speculation. What the cells differ in is theirs, and a value for it is refused, for
it would be ignored or make them one.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from experiments.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


LISTS = ("cells", "ab.baseline", "ab.candidate", "campaign.changes")


def key(override: str) -> str:
    """Without what says how it is meant: `+` adds, `++` forces, `~` deletes."""
    return override.partition("=")[0].lstrip("+~")


def value(override: str) -> str:
    return override.partition("=")[2]


def without(base: Iterable[str], cell: Iterable[str]) -> list[str]:
    """The command line's overrides but for those whose key the cell has too."""
    taken = set(map(key, cell))
    return [override for override in base if key(override) not in taken]


def lists_cells(given: Iterable[str]) -> bool:
    """Then cells and all else are of one hand, and the cell is the more exact."""
    return any(name in LISTS or name.partition(".")[0] == "sweep" for name in map(key, given))


def settled(given: Sequence[str], cells: Sequence[Sequence[str]]) -> list[tuple[list[str], list[str]]]:
    """By cell: the command line's overrides, then the cell's own with the command line's values. Raises ConfigError."""
    typed = {key(override): override for override in given}
    stated = {name: values_of(name, cells) for name in typed}
    for name, values in stated.items():
        if len(values) > 1:
            raise ConfigError(
                name,
                f"is what the preset's cells differ in ({', '.join(values)}), and {typed[name]} would go unnoticed; "
                "leave it out, or list other cells or axes (docs/sweeps.md)",
            )
    moved = [name for name, values in stated.items() if values]
    common = without(given, moved)
    changes = {name: typed[name] for name in moved}
    return [(without(common, cell), [changed(one, changes) for one in cell]) for cell in cells]


def values_of(name: str, cells: Sequence[Sequence[str]]) -> list[str]:
    """Each once; null is none: that cell does without, and stays so."""
    found = (value(one) for one in chain.from_iterable(cells) if key(one) == name)
    return list(dict.fromkeys(one for one in found if one != "null"))


def changed(override: str, changes: dict[str, str]) -> str:
    """How the cell means it (`+`) stays, unless the command line deletes it."""
    by = changes.get(key(override))
    if by is None or value(override) == "null":
        return override
    return by if by.startswith("~") else f"{override.partition('=')[0]}={value(by)}"


def arms(given: Sequence[str], listed: Sequence[Sequence[str]]) -> list[tuple[list[str], list[str]]]:
    """As `settled`, where each list is a change to the rest: its keys are its own. Raises ConfigError."""
    for name in () if lists_cells(given) else map(key, given):
        if all(name in map(key, arm) for arm in listed):
            raise ConfigError(
                name,
                "is said by every arm, and the command line's would go unnoticed; leave it out",
            )
    return [(without(given, arm), [*arm]) for arm in listed]
