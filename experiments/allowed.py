"""What the command line of a measurement may say, judged before a card is asked for or a kernel compiled.

Types for argparse, whose own say neither which numbers make sense nor that a folder is no checkpoint. The surprise: a
checkpoint's folder is read where it is judged, since that is the only way to know, and the option's value is what was
read. What only several options together show is judged behind them, under the name of one: `naming`.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ling_runtime.config import ConfigError

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Callable, Iterator

Config = TypeVar("Config")


def whole(low: int, high: int | None = None) -> Callable[[str], int]:
    """A whole number from `low` to `high`."""

    def read(text: str) -> int:
        value = int(text) if re.fullmatch(r"[+-]?[0-9]{1,18}", text) else None
        if value is None or value < low or (high is not None and value > high):
            raise ArgumentTypeError(
                f"{text!r}: allowed: whole numbers, {low} {'and more' if high is None else f'to {high}'}"
            )
        return value

    return read


def number(low: float) -> Callable[[str], float]:
    """A finite number from `low`."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value < float("inf"):
            raise ArgumentTypeError(f"{text!r}: allowed: numbers, {low:g} and more")
        return value

    return read


def share(text: str) -> tuple[int, int]:
    """I of N shares, counted from 0."""
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if found is None or int(found[1]) >= int(found[2]):
        raise ArgumentTypeError(f"{text!r}: allowed: I/N with I from 0 to N - 1, such as 0/4")
    return int(found[1]), int(found[2])


def file(text: str) -> Path:
    """One that can be written when the measurement is over."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise ArgumentTypeError(f"{text!r}: allowed: a file in a folder that exists")
    return path


def checkpoint(load: Callable[[str], Config]) -> Callable[[str], Config]:
    """A folder with a config.json that `load` takes; the value is what it makes of it."""

    def read(text: str) -> Config:
        try:
            return load(text)
        except ConfigError as error:
            raise ArgumentTypeError(str(error)) from error

    return read


@contextmanager
def naming(parser: ArgumentParser, option: str, advice: str = "") -> Iterator[None]:
    """A ConfigError inside is the `option`'s."""
    try:
        yield
    except ConfigError as error:
        parser.error(f"argument {option}: {error}{advice}")
