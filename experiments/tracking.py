"""Finished cells in MLflow: one experiment per study, one parent run per sweep, one child per attempt at a cell.

Written from records alone; drivers that share a sweep share its parent, and file one at a time. The surprise: a store
that fails while a study runs costs a warning and nothing else, for the record is on disk and can be filed later. It is
not asked again in this run, because each question to a dead server takes seconds.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from experiments.record import record_file
from experiments.store import open_shelf

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from experiments.filing import Shelf
    from experiments.plan import Invocation
    from experiments.spec import StudySpec


class Untracked:
    """Tracking switched off."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def log(self, attempt: Path) -> bool:  # noqa: ARG002 - as a tracker's
        return True

    def expect(self, cells: int) -> None:
        pass

    def complete(self, attempts: Sequence[Path]) -> None:
        pass


class Tracker:
    """The parent run of one call, in an open store; a context manager that ends that run, for now or for good."""

    def __init__(self, shelf: Shelf, study: str, invocation: Invocation) -> None:
        self._shelf = shelf
        self._study = study
        self._invocation: dict[str, Any] = asdict(invocation)
        self._parent = ""
        self._broken = False

    def __enter__(self) -> Self:
        self._try("the parent run is not there", self._begin)
        return self

    def __exit__(self, *_: object) -> None:
        self._try("the parent run has no end", lambda: self._shelf.end(self._parent, self._invocation))

    def log(self, attempt: Path) -> bool:
        """File one record as a child run; False if the store did not take it."""
        return self._try(f"{record_file(attempt)} is complete", lambda: self._shelf.file(self._parent, attempt))

    def expect(self, cells: int) -> None:
        """So many were to be measured after all: a search ends where its budget does."""
        self._invocation["cells"] = cells

    def complete(self, attempts: Sequence[Path]) -> None:
        """File what drivers of the same call have recorded and did not live to file."""
        self._try("`python -m analysis sync` files the rest", lambda: self._file_all(attempts))

    def _file_all(self, attempts: Sequence[Path]) -> None:
        for attempt in self._shelf.lacking(self._parent, self._invocation, attempts):
            self._shelf.file(self._parent, attempt)

    def _begin(self) -> None:
        self._parent = self._shelf.parent(self._study, self._invocation)

    def _try(self, state: str, action: Callable[[], object]) -> bool:
        """A failure is told on stderr and ends here: tracking never loses a finished cell."""
        if self._broken:
            return False
        try:
            action()
        except Exception as error:  # noqa: BLE001 - MLflow's stores fail in many ways
            self._broken = True
            print(f"tracking failed, {state}: {error}", file=sys.stderr)
        return not self._broken


def open_tracker(study: StudySpec, invocation: Invocation) -> Tracker | Untracked:
    """Raises ConfigError for a store that takes no writing."""
    if not study.tracking.enabled or not invocation.cells:
        return Untracked()
    return Tracker(open_shelf(Path(study.output_dir), study.study, study.tracking.uri), study.study, invocation)
