"""The border between Hydra and us: a composed configuration becomes a study and its cells, or a ConfigError.

The surprise: a preset with `cells`, axes, arms or changes is composed once more for each, with its overrides after the
command line's (precedence.py), so that each may change groups and all that Hydra checks is checked for each of them.
"""

from __future__ import annotations

import dataclasses
import math
import types
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments import precedence, secrets, sweep
from experiments.comparison.spec import Modes
from experiments.errors import ConfigError
from experiments.schema import Cells
from experiments.spec import CellSpec, StudySpec
from experiments.templates import composed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omegaconf import DictConfig

T = TypeVar("T")

AXES = ("cells", "sweep")
"""Where a preset says what its cells are. The first of them keeps it; in each of a thousand it would be a thousand."""


@dataclasses.dataclass(frozen=True)
class Composed:
    """One cell as composed, with the study it asks to belong to and what that is to do."""

    study: StudySpec
    cell: CellSpec
    modes: Modes


def expand(config: DictConfig) -> list[DictConfig]:
    """One Hydra job's configuration, or one per cell that it lists. To be called inside the job. Raises ConfigError."""
    try:
        listed = override_lists(config)
        if not listed:
            return [config]
        job = HydraConfig.get()
        name = str(job.job.config_name)
        typed = cast("list[str]", OmegaConf.to_container(job.overrides.task, resolve=False))  # as texts, `${x}` too
        (given, first), *others = pairs(config, typed, listed)
        return [composed(name, given, first), *(composed(name, base, cell, dropped=AXES) for base, cell in others)]
    except OmegaConfBaseException as error:
        raise named(error) from error


def pairs(
    config: DictConfig, given: Sequence[str], listed: Sequence[Sequence[str]]
) -> list[tuple[list[str], list[str]]]:
    """What the command line says of each cell, and the cell's own overrides. Raises ConfigError."""
    own = config.mode in ("ab", "campaign") or precedence.lists_cells(given)
    return (precedence.arms if own else precedence.settled)(given, listed)


def override_lists(config: DictConfig) -> list[Sequence[str]]:
    """An A/B's arms; a campaign's base, then each change over it; or the cells of a sweep."""
    match config.mode:
        case "ab":
            return [config.ab.baseline, config.ab.candidate]
        case "campaign":
            return [[], *(entry.overrides for entry in config.campaign.changes)]
        case _:
            return [*sweep.combinations(axes(config))]


def axes(config: DictConfig) -> list[sweep.Axis]:
    """Of `cells` and `sweep`. Raises ConfigError."""
    lists = {kind: OmegaConf.to_container(config.sweep[kind], resolve=True) for kind in ("grid", "zip")}
    return sweep.axes(config.cells, sweep.SweepSpec(**cast("Any", lists)))


def convert(config: DictConfig) -> Composed:
    """Raises ConfigError for what the schema cannot say: missing values, broken references, choices."""
    try:
        values = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise named(error) from error
    assert isinstance(values, dict)
    secrets.learn(values)
    refuse_unknown(values, StudySpec, CellSpec, Cells, Modes)
    searched(values["search"])
    return Composed(build(StudySpec, values), build(CellSpec, values), build(Modes, values))


def named(error: OmegaConfBaseException) -> ConfigError:
    """A missing value or a broken reference, by its key."""
    return ConfigError(error.full_key or "config", str(error).splitlines()[0])


def searched(values: dict[Any, Any]) -> sweep.SearchSpec:
    """Checked also where nothing is searched, for nobody looks at it again. Raises ConfigError."""
    spec: sweep.SearchSpec = _value(sweep.SearchSpec, values, "search")
    sweep.check_search(spec)
    return spec


def refuse_unknown(values: dict[Any, Any], *specs: type, path: str = "") -> None:
    """`+key=value` gets past the schema, and a key that nobody reads would be a change without effect."""
    known = [field.name for spec in specs for field in dataclasses.fields(spec)]
    for key in values:
        if key not in known:
            raise ConfigError(f"{path}{key}", f"no such key; allowed: {', '.join(known)}")


def build(spec: type[T], values: dict[Any, Any], path: str = "") -> T:
    """A frozen spec from plain values that passed the schema; here choices are checked, and that numbers are finite."""
    assert dataclasses.is_dataclass(spec)
    hints = hints_of(cast("type", spec))
    names = [field.name for field in dataclasses.fields(spec)]
    return spec(**{name: _value(hints[name], values[name], f"{path}{name}") for name in names})


@cache
def hints_of(spec: type) -> dict[str, Any]:
    return get_type_hints(spec)


def _value(hint: Any, value: Any, key: str) -> Any:
    if dataclasses.is_dataclass(hint):
        assert isinstance(hint, type)
        refuse_unknown(value, hint, path=f"{key}.")
        return build(hint, value, f"{key}.")
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        return tuple(_value(item, one, f"{key}[{index}]") for index, one in enumerate(value))
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    allowed = [choice for option in options if get_origin(option) is Literal for choice in get_args(option)]
    if allowed and value not in allowed and not (value is None and type(None) in options):
        raise ConfigError(key, f"{value!r} is not one of {', '.join(allowed)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(key, f"{value} is no quantity; allowed: finite numbers")
    return value
