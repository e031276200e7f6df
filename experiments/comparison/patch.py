"""A change as the difference of two specs, which can be put on any other spec and left out again. Pure.

A campaign composes each change once, over its base, where Hydra checks all of it; the rest is arithmetic on specs. The
surprise: a list that was only lengthened, or only thinned, is an addition or a removal. So two changes that each add a
server flag, or take one away, stay independent, where the second one's override would have undone the first one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import reduce
from operator import getitem
from typing import TYPE_CHECKING, Any, Literal

from experiments.composition import build
from experiments.plan import flat
from experiments.spec import CellSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

GONE = object()
"""Stands for a key of an open dictionary (env, kernels) that the change takes away."""


@dataclass(frozen=True)
class Edit:
    key: str
    """Dotted."""
    value: Any
    way: Literal["put", "added", "removed"] = "put"
    """A list's items may go behind those that are there, or from among them."""


Patch = tuple[Edit, ...]


def difference(base: CellSpec, changed: CellSpec) -> Patch:
    """What turns `base` into `changed`, declarations aside."""
    return tuple(_edits(flat(base), flat(changed)))


def apply(spec: CellSpec, patches: Iterable[Patch]) -> CellSpec:
    """In order. Raises ConfigError where a value no longer fits."""
    tree = asdict(spec)
    for patch in patches:
        for edit in patch:
            *path, last = edit.key.split(".")
            place = reduce(getitem, path, tree)
            if edit.value is GONE:
                place.pop(last, None)
            else:
                place[last] = _edited(place.get(last), edit)
    return build(CellSpec, tree)


def _edits(before: dict[str, Any], after: dict[str, Any]) -> Iterator[Edit]:
    for key in dict.fromkeys((*before, *after)):
        old, new = before.get(key, GONE), after.get(key, GONE)
        if old == new or key.startswith("change."):
            continue
        if not (isinstance(old, tuple) and isinstance(new, tuple)):
            yield Edit(key, new)
        elif old == new[: len(old)]:
            yield Edit(key, new[len(old) :], "added")
        elif _without(old, removed := _without(old, new)) == new:
            yield Edit(key, removed, "removed")
        else:
            yield Edit(key, new)


def _edited(there: Any, edit: Edit) -> Any:
    match edit.way:
        case "put":
            return edit.value
        case "added":
            return (*there, *edit.value)
        case "removed":
            return _without(there, edit.value)


def _without(items: tuple[Any, ...], gone: tuple[Any, ...]) -> tuple[Any, ...]:
    """Each of `gone` is taken away once, where it comes first."""
    kept = [*items]
    for item in gone:
        if item in kept:
            kept.remove(item)
    return tuple(kept)
