"""run.py's command line in Hydra's grammar: overrides and options in any order, and the one option of our own.

The surprise: Hydra takes overrides in one row only. They are put before all options, for behind an option like `--info`
the first of them would be taken for its value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

RETRY = "--retry"
VALUED = (
    *("--cfg", "-c", "--package", "-p", "--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd"),
    "--experimental-rerun",
)
"""Hydra's options whose value is the next word, whatever it looks like."""


def spelled(arguments: Sequence[str]) -> list[str]:
    """All overrides in their order, what `--retry invalid` stands for before them; then the rest as it is."""
    chosen: list[str] = []
    overrides: list[str] = []
    options: list[str] = []
    given = iter(arguments)
    for argument in given:
        name, equals, value = argument.partition("=")
        if name == RETRY:
            chosen = ["resume=true", f"retry={value if equals else next(given, '')}"]
        elif is_override(argument):
            overrides.append(argument)
        else:
            options.append(argument)
            options += [word for word in [next(given, None)] if word is not None] if argument in VALUED else []
    return [*chosen, *overrides, *options]


def is_override(argument: str) -> bool:
    return argument.startswith("~") or ("=" in argument and not argument.startswith("-"))
