"""HTML and SVG as values: elements made of text that is escaped and of elements that are not.

The surprise: there is no way to forget the escaping. A plain string is text, whoever wrote it (a model, a log, the
author of a hypothesis); only what `tag` made is markup.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup, escape

if TYPE_CHECKING:
    from collections.abc import Iterable

    Content = str | Iterable[str] | None


VOID = ("meta",)
"""Without an end tag."""


def tag(name: str, *content: Content, **attributes: str | float | None) -> Markup:
    """`class_` is class, `data_cell` data-cell; an attribute that is None is left out, and so is such content."""
    texts = [f' {_name(key)}="{escape(_value(value))}"' for key, value in attributes.items() if value is not None]
    opening = Markup(f"<{name}{''.join(texts)}>")  # noqa: S704 - values are escaped, names are the program's
    closing = Markup(f"</{name}>")  # noqa: S704
    return opening if name in VOID else opening + join(content) + closing


def join(content: Iterable[Content]) -> Markup:
    parts = ([part] if isinstance(part, str) else part for part in content if part is not None)
    return Markup("").join(text for part in parts for text in part)


def figure(value: float | None, digits: int, unit: str = "", *, of: str | None = None) -> Markup:
    """A number for people that carries all its digits for programs; `of` names what it is a figure of."""
    if value is None:
        return Markup("")
    return tag("data", f"{value:.{digits}f}{unit}", value=repr(float(value)), data_of=of)


def _name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _value(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:g}"
