"""Files that scheduled verification needs, each with the identity of what it was made with.

A file that was asked for and is missing, malformed or made with something else is refused by name, or replaced by the
conservative default with a warning where the caller allows it. Files without an identity (SGLang's own) are taken on
trust, and the log says so. The surprise: without any file nothing is refused, because the default is harmless: an
uncalibrated confidence under a flat cost verifies every row.
"""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ling_runtime.config import ConfigError
from ling_runtime.speculation.dspark import cost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ling_runtime.speculation.dspark.cost import CostTable
    from ling_runtime.speculation.dspark.identity import Identity

TABLES = ("reliability_before", "reliability_after", "cells")
"""Keys of evidence that fills pages."""

log = logging.getLogger(__name__)

Value = TypeVar("Value")


@dataclass(frozen=True)
class Loaded(Generic[Value]):
    """`about` is the file's path and own account of itself, without its tables; None when the default is used."""

    value: Value
    about: dict[str, Any] | None


def load_temperatures(path: str | None, identity: Identity, *, allow_fallback: bool) -> Loaded[tuple[float, ...]]:
    """One temperature per draft; 1 at every position without a file."""

    def read(raw: dict[str, Any]) -> tuple[float, ...]:
        values = raw.get("temperatures")
        if not isinstance(values, list) or len(values) != identity.gamma:
            raise ConfigError(
                f"temperatures={values!r}: must be a list of {identity.gamma} numbers, one for each draft"
            )
        if any(type(value) not in (int, float) or not 0 < value <= sys.float_info.max for value in values):
            raise ConfigError(f"temperatures={values}: must be positive numbers")
        return tuple(map(float, values))

    default = Loaded((1.0,) * identity.gamma, None)
    source = _Source("--speculative-dspark-confidence-sts-path", path, ("target", "draft", "gamma"))
    return _load(source, identity, read, default, "confidences are not calibrated", allow_fallback=allow_fallback)


def load_cost(path: str | None, identity: Identity, *, allow_fallback: bool) -> Loaded[CostTable]:
    """A cost table in either format; flat without a file."""
    source = _Source("--speculative-dspark-sps-table-path", path, ("target", "draft", "gamma", "hardware", "kernels"))
    default: Loaded[CostTable] = Loaded(cost.FLAT, None)
    return _load(source, identity, cost.from_json, default, "every row is verified", allow_fallback=allow_fallback)


def write(path: Path, identity: Identity, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"identity": asdict(identity), **content}, indent=2) + "\n")


@dataclass(frozen=True)
class _Source:
    flag: str
    path: str | None
    binding: tuple[str, ...]
    """Parts of the identity that must be equal."""


def _load(
    source: _Source,
    identity: Identity,
    read: Callable[[dict[str, Any]], Value],
    default: Loaded[Value],
    consequence: str,
    *,
    allow_fallback: bool,
) -> Loaded[Value]:
    if source.path is None:
        log.warning("no %s: %s", source.flag, consequence)
        return default
    try:
        raw = _json(Path(source.path))
        value = read(raw)
        _check_identity(raw, identity, source)
    except ConfigError as error:
        if not allow_fallback:
            raise ConfigError(f"{source.flag} {source.path}: {error}") from error
        log.warning("%s %s IS NOT USED, %s: %s", source.flag, source.path, consequence, error)
        return default
    return Loaded(value, {"path": source.path, **{key: part for key, part in raw.items() if key not in TABLES}})


def _json(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise ConfigError(f"not JSON ({error})") from error
    if not isinstance(raw, dict):
        raise ConfigError("not a JSON object")
    return raw


def _check_identity(raw: dict[str, Any], identity: Identity, source: _Source) -> None:
    made_with, ours = raw.get("identity"), asdict(identity)
    if made_with is None:
        log.warning("%s %s names nothing that it was made with; taken on trust", source.flag, source.path)
        return
    if not isinstance(made_with, dict):
        raise ConfigError(f"identity={made_with!r}: must be an object")
    for key in source.binding:
        if key == "kernels":
            _check_kernels(made_with.get(key), identity.kernels)
        elif made_with.get(key) != ours[key]:
            raise ConfigError(f"made with {key} {made_with.get(key)!r}, but here it is {ours[key]!r}")


def _check_kernels(theirs: object, ours: Mapping[str, str] | None) -> None:
    if ours is None:
        return
    if not isinstance(theirs, dict):
        raise ConfigError(f"does not name the kernels that it was made with, and here it is {_said(ours, ours)}")
    differing = sorted(o for o in {*theirs, *ours} if theirs.get(o, "reference") != ours.get(o, "reference"))
    if differing:
        raise ConfigError(f"made with kernels {_said(theirs, differing)}, but here it is {_said(ours, differing)}")


def _said(kernels: Mapping[str, Any], operators: Iterable[str]) -> str:
    return ", ".join(f"{o}={kernels.get(o, 'reference')}" for o in operators) or "reference throughout"
