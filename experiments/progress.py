"""Where a study is, on stderr: bars for a terminal, lines for a log. Stdout belongs to the results.

The surprise: the stage shown here is also the `phase` of a failure's record, so that both always agree.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Callable


class Stages:
    """The stages of the cells of one study, one after the other; a context manager that restores the terminal."""

    def __init__(self, cells: int) -> None:
        self._cells = cells
        self._begun: dict[str, int] = {}
        self._cell = ""
        self._start = time.monotonic()
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
        )
        self._bar: TaskID | None = None
        self._seconds: dict[str, float] = {}
        self._entered = self._start
        self._note: Callable[[str], None] | None = None
        self.name = "start"

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def cell(self, name: str) -> None:
        place = self._begun.setdefault(name, len(self._begun) + 1)
        self._cell = f"[{place}/{self._cells}] {name}"
        self._start = self._entered = time.monotonic()
        self._seconds = {}
        self._note = None
        self.name = "start"

    def follow(self, note: Callable[[str], None]) -> None:
        """`note` is told every further stage of this cell."""
        self._note = note

    def seconds(self) -> dict[str, float]:
        """What each stage of the cell took, up to now."""
        return {name: round(value, 3) for name, value in {**self._seconds, self.name: self._lasted()}.items()}

    def _lasted(self) -> float:
        return self._seconds.get(self.name, 0.0) + time.monotonic() - self._entered

    def enter(self, name: str, total: int | None = None) -> None:
        """The next stage; `total` steps of it are announced by `advance`."""
        self._seconds[self.name] = self._lasted()
        self._entered = time.monotonic()
        self.name = name
        if self._note:
            self._note(name)
        self.say(name + (f" ({total})" if total else ""))
        if self._bar is not None:
            self._bars.remove_task(self._bar)
        self._bar = self._bars.add_task(f"{self._cell}: {name}", total=total)

    def advance(self, steps: int) -> None:
        if self._bar is not None:
            self._bars.advance(self._bar, steps)

    def say(self, text: str) -> None:
        """A line in a log; a terminal shows the bar instead."""
        if self._bars.disable:
            print(f"{self._cell} {time.monotonic() - self._start:6.1f} s  {text}", file=sys.stderr, flush=True)
