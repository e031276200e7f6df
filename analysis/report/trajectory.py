"""A campaign as a path: one row per change in the order in which they were tried, and how far the best has come.

The shape of the publication's first figure, with what did not stay left in: kept stacks are joined, a change that was
rejected or decided nothing hangs beside the path as an empty circle. The surprise: the figures are those that each cell
measured by itself, hours apart; what the verdicts went by are the paired ratios, which are another plot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.report import svg

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markupsafe import Markup

    from analysis.dossier import Study

FIGURES = {
    "mean_tpot_ms": ("Mean TPOT, ms", 3),
    "output_tok_s": ("Output throughput, tok/s", 1),
    "accept_length": ("Accept length", 2),
}
ROW, TOP, LEFT, RIGHT = 34, 8, 10, 60


@dataclass(frozen=True)
class Stop:
    """One change and its figure; None where it has none that may be quoted."""

    name: str
    verdict: str
    value: float | None
    kept: bool
    simulated: bool = False


def stops(study: Study, figure: str) -> list[Stop]:
    """The base, then every change that was decided; without a campaign nothing is a path and there are none."""
    if study.campaign is None:
        return []
    kept = {"base", *study.campaign["kept"]}
    tried = [
        ("base", "baseline"),
        *((line["name"], line["verdict"] or line["status"]) for line in study.campaign["changes"]),
    ]
    found = []
    for name, verdict in tried:
        cell = study.cell(name)
        measured = (cell.record["metrics"] or {}) if cell and cell.record["status"] == "valid" else {}
        simulated = figure == "accept_length" and measured.get("accept_source") == "simulated"
        found.append(Stop(name, verdict, measured.get(figure), name in kept, simulated))
    return found


def plot(study: Study, figure: str) -> Markup | None:
    path = stops(study, figure)
    values = [stop.value for stop in path if stop.value is not None]
    if not values:
        return None
    title, digits = FIGURES[figure]
    bottom = TOP + ROW * len(path)
    scale = svg.covering(values, LEFT, svg.WIDTH - RIGHT)
    content = [*svg.across(scale, TOP, bottom), *joined(path, scale), *marks(path, scale, digits)]
    return svg.drawing(f"{title}, by change", bottom + 24, content)


def joined(path: Sequence[Stop], scale: svg.Scale) -> Iterator[Markup]:
    points = [(scale(stop.value), _y(row)) for row, stop in enumerate(path) if stop.kept and stop.value is not None]
    yield svg.curve(points, svg.COLOURS[0])


def marks(path: Sequence[Stop], scale: svg.Scale, digits: int) -> Iterator[Markup]:
    for row, stop in enumerate(path):
        colour = svg.VERDICTS.get(stop.verdict, svg.INVALID)
        yield svg.text(LEFT, _y(row) - 10, f"{stop.name}: {stop.verdict}", fill=colour)
        if stop.value is not None:
            x = scale(stop.value)
            yield svg.dot(x, _y(row), colour, hollow=not stop.kept)
            yield svg.text(x + 9, _y(row) + 4, f"{stop.value:.{digits}f}" + " simulated" * stop.simulated)


def _y(row: int) -> float:
    return TOP + ROW * row + 24
