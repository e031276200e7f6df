"""The schema that Hydra checks a configuration against, derived from the frozen classes of spec.py.

One field, one place: a key is written in spec.py and nowhere else. The derivation is needed because OmegaConf 2.3
takes frozen classes for read-only and knows no `Literal`. The surprise: `env`, `kernels`, `engine.flags`,
`model.drafts`, a sweep's axes and sbatch's parameters are open dictionaries, all the rest is closed, so that a misspelt
key ends a run before anything starts.
"""

from __future__ import annotations

import dataclasses
import types
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, OmegaConf

from experiments.child import ROOT
from experiments.comparison.spec import Modes
from experiments.spec import CellSpec, StudySpec
from experiments.sweep import SearchSpec, SweepSpec

OPEN = ("env", "kernels", "engine.flags", "model.drafts", "launcher.sbatch", "sweep.grid", "sweep.zip")


@cache
def schema_of(*specs: type) -> type:
    """One mutable dataclass with the fields of all `specs`, in OmegaConf's types."""
    hints = [(field, get_type_hints(spec)[field.name]) for spec in specs for field in dataclasses.fields(spec)]
    fields = [(field.name, _plain(hint), _default(field, hint)) for field, hint in hints]
    return dataclasses.make_dataclass(f"{specs[0].__name__}Schema", fields, kw_only=True)


def register() -> None:
    """Store the schema under the name that conf/config.yaml begins with, and the `root` resolver."""
    node = OmegaConf.structured(schema_of(CellSpec, StudySpec, Cells, Modes))
    for name in OPEN:
        OmegaConf.set_struct(OmegaConf.select(node, name), False)
    ConfigStore.instance().store("schema", node)
    OmegaConf.register_new_resolver("root", lambda path: str(ROOT / Path(path)), replace=True)


@dataclasses.dataclass(frozen=True)
class Cells:
    """A mixed sweep: each cell is a list of overrides that belong together. Empty: the configuration is the cell."""

    cells: list[list[str]] = dataclasses.field(default_factory=list)
    sweep: SweepSpec = dataclasses.field(default_factory=SweepSpec)
    """Axes that make such cells; beside `cells`, each with each of them."""
    search: SearchSpec = dataclasses.field(default_factory=SearchSpec)
    """With a budget: which of these cells to measure is decided on the way."""


def _plain(hint: Any) -> Any:
    origin = get_origin(hint)
    if dataclasses.is_dataclass(hint):
        assert isinstance(hint, type)
        return schema_of(hint)
    if origin is Literal:
        return str
    if origin is tuple:
        return list[_plain(get_args(hint)[0])]  # type: ignore[misc]
    if origin in (Union, types.UnionType):
        return Union[tuple(_plain(part) for part in get_args(hint))]  # noqa: UP007 - built from values
    return hint


def _default(field: dataclasses.Field[Any], hint: Any) -> Any:
    if dataclasses.is_dataclass(hint):
        return dataclasses.field(default_factory=_plain(hint))
    if field.default_factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=field.default_factory)
    if field.default is dataclasses.MISSING:
        return MISSING
    default = field.default
    return dataclasses.field(default_factory=lambda: [*default]) if isinstance(default, tuple) else default
