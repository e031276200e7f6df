"""Command-line flags from a frozen dataclass: one field, one flag, and the text in its annotation is the help.

`steps: Annotated[int, "updates in all"] = 3000` becomes `--steps N`. A field that is itself a dataclass gives its own
fields as further flags. Types carry the allowed values (Literal, bool, int, tuple[int, ...], Path, or one of these with
None); what they cannot say a dataclass checks in __post_init__, by a ConfigError that names the key.
"""

from __future__ import annotations

import argparse
import types
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import torch

from ling_runtime.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Options = TypeVar("Options")


def parse(kind: type[Options], arguments: Sequence[str], *, prog: str, description: str) -> Options:
    """`arguments` as one value of `kind`; a wrong flag or value ends the program with exit code 2 and the reason."""
    parser = argparse.ArgumentParser(
        prog=prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    _add(parser, kind)
    given = vars(parser.parse_args(arguments))
    try:
        return _build(kind, given)
    except ConfigError as error:
        parser.error(str(error))


def check_device(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device=cuda: torch finds no CUDA device; allowed here: cpu")


def _add(parser: argparse._ActionsContainer, kind: type[Any]) -> None:
    for field, hint in _typed(kind):
        if is_dataclass(hint):
            title = (hint.__doc__ or "").split("\n")[0]
            _add(parser.add_argument_group(title), hint)  # type: ignore[arg-type]
        else:
            _add_flag(parser, field, hint)


def _typed(kind: type[Any]) -> Iterator[tuple[Field[Any], Any]]:
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        yield field, hints[field.name]


def _add_flag(parser: argparse._ActionsContainer, field: Field[Any], hint: Any) -> None:
    hint, text = get_args(hint) if get_origin(hint) is Annotated else (hint, "")
    settings: dict[str, Any] = {"dest": field.name, "required": field.default is MISSING, "default": argparse.SUPPRESS}
    if field.default is not MISSING and field.default is not None:
        text += f" (default: {_shown(field.default)})"
    hint = _without_none(hint)
    if hint is bool:
        settings["action"] = argparse.BooleanOptionalAction
    elif get_origin(hint) is Literal:
        settings["choices"] = get_args(hint)
    elif get_origin(hint) is tuple:
        settings |= {"nargs": "+", "type": get_args(hint)[0], "metavar": _METAVARS[get_args(hint)[0]]}
    else:
        settings |= {"type": hint, "metavar": _METAVARS[hint]}
    parser.add_argument(f"--{field.name.replace('_', '-')}", help=text.strip().replace("%", "%%"), **settings)


def _without_none(hint: Any) -> Any:
    if get_origin(hint) not in (Union, types.UnionType):
        return hint
    (kind,) = (part for part in get_args(hint) if part is not type(None))
    return kind


def _shown(default: Any) -> str:
    return " ".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _build(kind: type[Options], given: dict[str, Any]) -> Options:
    values: dict[str, Any] = {}
    for field, hint in _typed(kind):
        if is_dataclass(hint):
            values[field.name] = _build(hint, given)  # type: ignore[arg-type]
        elif field.name in given:
            value = given[field.name]
            values[field.name] = tuple(value) if isinstance(value, list) else value
    return kind(**values)


_METAVARS = {Path: "PATH", int: "N", float: "X", str: "NAME"}
