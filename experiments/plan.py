"""A study's cells in order, each with its name, its axes and, once its data is known, its identity. Pure.

A single run is a plan with one cell. The surprise: a name shows only what varies inside the plan (`none`, `nextn-3-4`),
so the same cell may be called differently elsewhere; what it is, is its identity.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import limits

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from experiments.spec import CellSpec, SpeculationSpec

UNNAMED = ("speculation.", "change.")
"""Keys that names leave out: the label says the first, the second is a declaration and no axis."""

PATHS = ("model.path", "model.tokenizer_path", "workload.dataset_path", "task.data_path")
"""Where things lie on this machine; identity hashes their contents instead."""

LIMITS = tuple(limits.KEYS.values())
"""They decide whether there is a result and not which."""


@dataclass(frozen=True)
class Cell:
    name: str
    spec: CellSpec
    axes: dict[str, Any]
    """Dotted keys that vary inside the plan, with this cell's values."""


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """One call of run.py for one study; its records belong together, also where a tracking store has lost them."""

    id: str
    cells: int
    """To be measured; those taken over from an earlier call belong to that."""
    started_utc: str


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Everything outside the spec that a measurement depends on, as hashes or names."""

    commit: str
    harness: str
    dataset: str
    task_data: str | None
    model: str
    hardware: str


def expand(specs: Sequence[CellSpec]) -> tuple[Cell, ...]:
    """Names are unique: cells that do not differ (an A/A) are numbered."""
    flats = [flat(spec) for spec in specs]
    varying = [key for key in _keys(flats) if len({json.dumps(f.get(key)) for f in flats}) > 1]
    axes = [{key: f.get(key) for key in varying if not key.startswith("change.")} for f in flats]
    names = _numbered([name(spec, ax) for spec, ax in zip(specs, axes, strict=True)])
    return tuple(Cell(*parts) for parts in zip(names, specs, axes, strict=True))


def name(spec: CellSpec, axes: Mapping[str, Any]) -> str:
    """The speculation's label, then every other axis as key=value."""
    others = [f"{key.rpartition('.')[2]}={_brief(value)}" for key, value in axes.items() if not key.startswith(UNNAMED)]
    return "_".join([label(spec.speculation), *others])


def label(speculation: SpeculationSpec) -> str:
    match speculation.algorithm:
        case "none":
            return "none"
        case "nextn":
            return f"nextn-{speculation.num_steps}-{speculation.num_draft_tokens}"
        case "dspark":
            return "-".join(filter(None, ["dspark", str(speculation.block_size), speculation.verify_mode]))


def identity(spec: CellSpec, inputs: Inputs) -> str:
    """Hash of all that a valid record of this cell depends on; equal on any machine of the same hardware class."""
    values = {key: value for key, value in flat(spec).items() if key not in (*PATHS, *LIMITS)}
    text = json.dumps([values, asdict(inputs)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def flat(spec: CellSpec) -> dict[str, Any]:
    """Dotted keys of a spec and their values."""
    return dict(_leaves(asdict(spec), ""))


def _leaves(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _keys(flats: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for f in flats for key in f))


def _brief(value: Any) -> str:
    """A value fit for a directory's name."""
    text = Path(value).name if isinstance(value, str) and "/" in value else str(value)
    return "".join(char if char.isalnum() or char in "+-." else "-" for char in text)[:40]


def _numbered(names: Sequence[str]) -> list[str]:
    seen: Counter[str] = Counter()
    numbered = []
    for text in names:
        seen[text] += 1
        numbered.append(text if seen[text] == 1 else f"{text}.{seen[text]}")
    return numbered
