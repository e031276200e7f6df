"""The real name that a made-up one was probably meant to be.

The surprise: letters alone mislead among names that share long beginnings. Whole words count as much, so that a name
with a word too many or in another order still finds its original.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

LEAST = 0.5
"""Likeness under which a suggestion would be a guess."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """None where nothing is like it."""
    likeness, found = max(((alike(name, other), other) for other in known), default=(0.0, None))
    return found if likeness >= LEAST else None


def alike(one: str, other: str) -> float:
    """0 to 1."""
    mine, theirs = _words(one), _words(other)
    letters = SequenceMatcher(None, "_".join(mine), "_".join(theirs)).ratio()
    return (letters + 2 * len({*mine} & {*theirs}) / (len({*mine}) + len({*theirs}) or 1)) / 2


def _words(name: str) -> list[str]:
    """Of a flag or variable, without what all of its kind begin with."""
    return [word for word in re.split(r"[-_]", name.lower()) if word not in ("", "sglang", "sgl")]
