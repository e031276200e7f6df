"""A study's cells in order, each with its name, its axes and, once its data is known, its identity. Pure.

A single run is a plan with one cell. The surprise: a name shows only what varies inside the plan (`none`, `dspark-8`),
so the same cell may be called differently elsewhere; what it is, is its identity.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import limits, secrets

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from experiments.spec import CellSpec, SpeculationSpec

PATHS = (
    *("model.path", "model.tokenizer_path", "workload.dataset_path", "task.data_path", "task.shots_path"),
    *("speculation.draft_path", "speculation.sts_path", "speculation.cost_table_path"),
)
"""Where things lie on this machine; identity hashes their contents instead."""

TOLD = ("change.", "engine.reported.")
"""A declaration is no axis, nor is what a server says of itself."""
LABELLED = ("speculation.", "env.", "engine.flags.")
"""Keys that a cell's label may stand for."""

LIMITS = ("engine.host", *limits.KEYS.values())
"""They decide whether there is a result, or who else may have one, and not which."""

ASSUMED = ("engine.gpu",)
"""What the audit takes for granted; the hardware itself is an input of its own."""


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
    draft: str | None
    """A draft model's, as `model`."""
    sts: str | None
    cost_table: str | None
    hardware: str


def expand(specs: Sequence[CellSpec]) -> tuple[Cell, ...]:
    """Names are unique: cells that do not differ (an A/A) are numbered."""
    flats = [flat(spec) for spec in specs]
    axes = [key for key in _varying(flats) if not key.startswith(TOLD)]
    labels = [label(spec.speculation) for spec in specs]
    alike: dict[str, list[Mapping[str, Any]]] = {}
    for text, values in zip(labels, flats, strict=True):
        alike.setdefault(text, []).append(values)
    shown = {text: _named(axes, same) for text, same in alike.items()}
    names = [name(text, values, shown[text]) for text, values in zip(labels, flats, strict=True)]
    cells = zip(_numbered(names), specs, flats, strict=True)
    return tuple(Cell(text, spec, {key: values.get(key) for key in axes}) for text, spec, values in cells)


def name(label: str, values: Mapping[str, Any], axes: Sequence[str]) -> str:
    """The speculation's label, then `axes` as key=value."""
    return "_".join([label, *(f"{key.rpartition('.')[2]}={_brief(values.get(key))}" for key in axes)])


def label(speculation: SpeculationSpec) -> str:
    match speculation.algorithm:
        case "none" | "served":
            return speculation.algorithm
        case "nextn" | "eagle3" | "standalone":
            return f"{speculation.algorithm}-{speculation.num_steps}-{speculation.num_draft_tokens}"
        case "ngram":
            return f"ngram-{speculation.num_draft_tokens}"
        case "dspark":
            mode = speculation.verify_mode if speculation.verify_mode != "static" else None
            return "-".join(filter(None, ["dspark", str(speculation.block_size), mode]))


def identity(spec: CellSpec, inputs: Inputs) -> str:
    """Hash of all that a valid record of this cell depends on; equal on any machine of the same hardware class."""
    values = {key: value for key, value in flat(spec).items() if key not in (*PATHS, *LIMITS, *ASSUMED)}
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


def _varying(flats: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys in which they differ, in the order of the spec."""
    keys = dict.fromkeys(key for values in flats for key in values)
    return [key for key in keys if len({json.dumps(values.get(key)) for values in flats}) > 1]


def _named(axes: Sequence[str], alike: Sequence[Mapping[str, Any]]) -> list[str]:
    """Axes that a name shows: of speculation and what goes with it those in which cells `alike` by label differ."""
    differing = _varying(alike)
    return [key for key in axes if not key.startswith(LABELLED) or key in differing]


def _brief(value: Any) -> str:
    """A value fit for a directory's name; of a list the end, where commands and flags differ."""
    value = secrets.masked_tree(value)
    if isinstance(value, tuple):
        return "-".join(_brief(part).strip("-") for part in value)[-40:].strip("-")
    text = Path(value).name if isinstance(value, str) and "/" in value else str(value)
    return "".join(char if char.isalnum() or char in "+-." else "-" for char in text)[:40]


def _numbered(names: Sequence[str]) -> list[str]:
    seen: Counter[str] = Counter()
    numbered = []
    for text in names:
        seen[text] += 1
        numbered.append(text if seen[text] == 1 else f"{text}.{seen[text]}")
    return numbered
