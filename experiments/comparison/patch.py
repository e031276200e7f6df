"""A change as the difference of two specs, which can be put on any other spec and left out again. Pure.

A campaign composes each change once, over its base, where Hydra checks all of it; the rest is arithmetic on specs. The
surprise: a list that was only lengthened is an addition. So two changes that each add a server flag stay independent,
where the second one's override would have taken the first one's flag away.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import reduce
from operator import getitem
from typing import TYPE_CHECKING, Any

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
    added: bool = False
    """`value` goes behind what is there."""


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
                place[last] = (*place[last], *edit.value) if edit.added else edit.value
    return build(CellSpec, tree)


def _edits(before: dict[str, Any], after: dict[str, Any]) -> Iterator[Edit]:
    for key in dict.fromkeys((*before, *after)):
        old, new = before.get(key, GONE), after.get(key, GONE)
        if old == new or key.startswith("change."):
            continue
        if isinstance(old, tuple) and isinstance(new, tuple) and old == new[: len(old)]:
            yield Edit(key, new[len(old) :], added=True)
        else:
            yield Edit(key, new)
