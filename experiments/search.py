"""Adaptive search: a sweep whose next cell Optuna chooses, by what the cells before it said.

The surprise: it searches a sweep's combinations and nothing between them. So every cell that may be proposed has been
composed and checked before the first is measured, its record is an ordinary record, and `resume` takes it over.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from experiments import composition
from experiments.comparison.figures import log_ratio
from experiments.errors import ConfigError
from gates.speed import criterion

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import optuna
    from omegaconf import DictConfig

    from experiments.preparation import Plan, Prepared
    from experiments.sweep import Axis, SearchSpec

    Point = tuple[int, ...]

REPEATS = 50
"""Proposals of cells already known, in a row, after which the first unknown one is taken."""


@dataclass
class Search:
    """Cells in the order of a search: iterate, and `tell` the record of each before asking for the next."""

    spec: SearchSpec
    axes: Sequence[Axis]
    cells: Sequence[Prepared]
    """All combinations of `axes`, the last moving fastest. The first is where the search begins."""
    stopped: str = ""
    """Why; empty while it has not."""
    known: dict[Point, float | None] = field(default_factory=dict)
    """The metric by point; None for a cell that was rejected or is invalid."""
    baseline: dict[str, Any] | None = None
    """The figures of the cell that the others are held against."""
    _trial: optuna.Trial | None = None

    @property
    def most(self) -> int:
        return min(self.spec.cells, len(self.cells))

    def __iter__(self) -> Iterator[Prepared]:
        study, begun = new_study(self.spec), time.monotonic()
        study.enqueue_trial({axis.name: 0 for axis in self.axes})
        while not self.stopped:
            self._trial, point = self._proposed(study)
            yield self.cells[self.index(point)]
            assert point in self.known, "a cell without a record"
            settle(study, self._trial, self.known[point])
            self.stopped = self._over(time.monotonic() - begun)

    def tell(self, record: dict[str, Any]) -> None:
        """The record of the cell that was given last."""
        assert self._trial is not None
        passed = record["status"] == "valid" and record["verdict"] != "reject"
        self.known[self._point(self._trial)] = self.value(record) if passed else None

    def value(self, record: dict[str, Any]) -> float:
        """Of a cell that passed. The first such is the baseline, as in any sweep."""
        figures = record["metrics"]
        if self.spec.metric != "criterion":
            return float(figures[self.spec.metric])
        if self.baseline is None:
            self.baseline = figures
            return 0.0
        return log_ratio(criterion(record["change"]["class"]), figures, self.baseline)

    def result(self) -> dict[str, Any]:
        """For the last line of a run."""
        values = {point: value for point, value in self.known.items() if value is not None}
        best = min(values, key=values.__getitem__, default=None)
        return {
            "best": None if best is None else self.cells[self.index(best)].cell.name,
            "metric": self.spec.metric,
            "value": None if best is None else values[best],
            "measured": len(self.known),
            "of": len(self.cells),
            "stopped": self.stopped or "interrupted",
        }

    def index(self, point: Point) -> int:
        """Of the cell at these places on the axes."""
        index = 0
        for axis, place in zip(self.axes, point, strict=True):
            index = index * len(axis.rows) + place
        return index

    def _proposed(self, study: optuna.Study) -> tuple[optuna.Trial, Point]:
        for repeat in range(REPEATS + 2):
            if repeat == REPEATS:
                study.enqueue_trial(self._unknown())
            trial = study.ask()
            point = self._point(trial)
            if point not in self.known:
                return trial, point
            settle(study, trial, self.known[point])
        raise AssertionError("a point that was asked for by name did not come")

    def _point(self, trial: optuna.Trial) -> Point:
        return tuple(suggested(trial, axis) for axis in self.axes)

    def _unknown(self) -> dict[str, int]:
        """The first point that nobody has measured."""
        sizes = [len(axis.rows) for axis in self.axes]
        index = next(i for i in range(len(self.cells)) if all(self.index(point) != i for point in self.known))
        places = [index // math.prod(sizes[at + 1 :]) % size for at, size in enumerate(sizes)]
        return {axis.name: place for axis, place in zip(self.axes, places, strict=True)}

    def _over(self, seconds: float) -> str:
        if len(self.known) == len(self.cells):
            return "every cell measured"
        if len(self.known) >= self.spec.cells:
            return f"budget of {self.spec.cells} cells"
        limit = self.spec.seconds
        return f"budget of {limit:g} s" if limit is not None and seconds >= limit else ""


def ordered(configs: Sequence[DictConfig], plans: Sequence[Plan]) -> Search | None:
    """The search that these configurations ask for. Raises ConfigError."""
    values = OmegaConf.to_container(configs[0].search, resolve=True)
    assert isinstance(values, dict)
    spec, axes = composition.searched(values), composition.axes(configs[0])
    if spec.cells == 0:
        return None
    if not axes:
        raise ConfigError("search.cells", "there is nothing to choose from; sweep.grid and sweep.zip name the axes")
    if len(plans) > 1 or len(plans[0].cells) != math.prod(len(axis.rows) for axis in axes):
        raise ConfigError("search", "takes its cells from the axes of one preset, and cannot be multiplied by -m")
    if find_spec("optuna") is None:
        raise ConfigError("search.cells", "needs Optuna, which is not installed: pip install 'ling-bench[search]'")
    return Search(spec, axes, plans[0].cells)


def new_study(spec: SearchSpec) -> optuna.Study:
    import optuna  # noqa: PLC0415 - an optional dependency

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=spec.seed, n_startup_trials=max(3, spec.cells // 3))
    return optuna.create_study(sampler=sampler, direction="minimize")


def suggested(trial: optuna.Trial, axis: Axis) -> int:
    """A place on the axis; on an ordered one Optuna learns that neighbours are alike."""
    last = len(axis.rows) - 1
    if axis.ordered and last:
        return trial.suggest_int(axis.name, 0, last)
    return int(trial.suggest_categorical(axis.name, range(last + 1)))


def settle(study: optuna.Study, trial: optuna.Trial, value: float | None) -> None:
    """A cell that did not pass counts as worse than any that did."""
    from optuna.trial import TrialState  # noqa: PLC0415 - as above

    if value is None:
        study.tell(trial, state=TrialState.PRUNED)
    else:
        study.tell(trial, value)
