"""run.py's command line in Hydra's grammar, for the one option that Hydra has no word for.

The surprise: where it goes matters. Hydra takes overrides in one row only, so what `--retry` stands for is put before
the first of them and not where the option stood.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

RETRY = "--retry"


def spelled(arguments: Sequence[str]) -> list[str]:
    """`--retry invalid`, as it is called elsewhere, in Hydra's grammar; all else as it is."""
    kept: list[str] = []
    chosen: list[str] = []
    given = iter(arguments)
    for argument in given:
        name, equals, value = argument.partition("=")
        if name == RETRY:
            chosen = ["resume=true", f"retry={value if equals else next(given, '')}"]
        else:
            kept.append(argument)
    first = next((at for at, text in enumerate(kept) if "=" in text and not text.startswith("-")), len(kept))
    return [*kept[:first], *chosen, *kept[first:]]
