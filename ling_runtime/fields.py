"""Typed reading of a JSON object, key by key, where a key nobody asked for is an error that names those allowed.

A misspelt sampling key that is silently dropped changes an experiment without a trace, so every body of the HTTP API
is read through here. The surprise: null means "not given", as it does for SGLang, whose clients send explicit nulls.
"""

from __future__ import annotations

import reprlib
import sys
from typing import TYPE_CHECKING, Any, TypeVar

from ling_runtime.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Default = TypeVar("Default")

INT64 = 2**63
"""Ids and seeds beyond 64 bits are wrong types, not large values."""

shown = reprlib.Repr()
"""Shows a client's value in an error: a few items, two levels deep, however large the value or deep its nesting."""
shown.maxstring = shown.maxother = shown.maxlong = 80
shown.maxlevel = 2


class Fields:
    """One JSON object; every key is taken at most once, and `finish` refuses what is left."""

    def __init__(self, name: str, raw: object) -> None:
        if not isinstance(raw, dict):
            raise Refusal(f"{name} must be a JSON object, got {_kind(raw)}", param=name)
        self._name = name
        self._raw: dict[str, Any] = dict(raw)
        self._known: list[str] = []

    def take(self, key: str) -> Any:
        """The raw value, None when absent or null."""
        self._known.append(key)
        return self._raw.pop(key, None)

    def boolean(self, key: str, default: Default) -> bool | Default:
        value = self.take(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(key, "a boolean", value)
        return value

    def integer(self, key: str, default: Default, *, low: int = -INT64) -> int | Default:
        value = self.take(key)
        if value is None:
            return default
        if type(value) is not int or not low <= value < INT64:
            raise self._wrong(key, "an integer" if low == -INT64 else f"an integer of at least {low}", value)
        return value

    def number(self, key: str, default: Default) -> float | Default:
        value = self.take(key)
        if value is None:
            return default
        if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:  # false for NaN and 10**400 too
            raise self._wrong(key, "a finite number", value)
        return float(value)

    def string(self, key: str, default: Default) -> str | Default:
        value = self.take(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self._wrong(key, "a string", value)
        return value

    def strings(self, key: str) -> tuple[str, ...]:
        """A string or a list of them."""
        value = self.take(key)
        items = [] if value is None else [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise self._wrong(key, "a string or a list of strings", value)
        return tuple(items)

    def integers(self, key: str) -> tuple[int, ...]:
        value = self.take(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise self._wrong(key, "a list of integers", value)
        return tuple(value)

    def mapping(self, key: str) -> dict[str, Any]:
        value = self.take(key)
        if value is not None and not isinstance(value, dict):
            raise self._wrong(key, "an object", value)
        return value or {}

    def neutral(self, allowed: Mapping[str, tuple[object, ...]]) -> None:
        """Keys of features this server lacks: accepted at the values that mean "off", refused by name otherwise."""
        for key, values in allowed.items():
            value = self.take(key)
            if value is not None and not any(_equal(value, off) for off in values):
                allowed_values = " or ".join(repr(item) for item in (None, *values))
                message = f"{self._name}: {key}={shown.repr(value)} is not supported here; allowed: {allowed_values}"
                raise Refusal(message, param=key)

    def ignore(self, keys: Iterable[str]) -> None:
        """Keys that clients send and that change nothing here."""
        for key in keys:
            self.take(key)

    def finish(self) -> None:
        if self._raw:
            key = min(self._raw)
            known = ", ".join(sorted(self._known))
            raise Refusal(f"{self._name}: unknown key {shown.repr(key)}; allowed: {known}", param=key)

    def _wrong(self, key: str, expected: str, value: object) -> Refusal:
        return Refusal(f"{self._name}: {key} must be {expected}, got {_kind(value)} {shown.repr(value)}", param=key)


def _equal(value: object, other: object) -> bool:
    """As JSON has it: false is not 0, 0.0 is."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _kind(value: object) -> str:
    return {dict: "object", list: "list", str: "string", bool: "boolean", type(None): "null"}.get(type(value), "number")
