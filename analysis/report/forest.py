"""Paired ratios with their intervals, a row per decision: step time, TPOT and accept length apart.

The grey band is the machine's A/A floor: what two launches of one cell may differ by. The surprise: an interval may run
off the plot. The scale follows the estimates, and an end beyond the rim, or without bound, gets an arrow.
"""

from __future__ import annotations

from math import expm1
from typing import TYPE_CHECKING

from analysis.ledger import FIGURES
from analysis.report import svg
from analysis.report.markup import tag

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markupsafe import Markup

    from analysis.ledger import Line, Ratio

LABELS = {"step_time": "step time", "tpot": "TPOT", "accept": "accept length"}
LANE, HEAD, TOP, RIM = 18, 22, 26, 26
LEAST = 0.02
"""Of the scale's reach, to either side."""


def plot(lines: Sequence[Line]) -> Markup | None:
    paired = [line for line in lines if line.step_time and line.step_time.source == "paired"]
    if not paired:
        return None
    scale = reach(paired)
    height = HEAD + LANE * len(FIGURES) + 8
    bottom = TOP + height * len(paired)
    zero = scale(0)
    content = [*legend(), *svg.across(scale, TOP, bottom, " %"), svg.line(zero, TOP, zero, bottom, "currentColor")]
    for row, line in enumerate(paired):
        content += decision(line, scale, TOP + height * row)
    return svg.drawing("Ratios of candidate to baseline, with intervals", bottom + 20, content)


def reach(lines: Sequence[Line]) -> svg.Scale:
    """Per cent; wide enough for every estimate and its nearer end."""
    ratios = [ratio for line in lines for name in FIGURES if (ratio := getattr(line, name))]
    farthest = max([LEAST, *(1.5 * abs(ratio.estimate) for ratio in ratios), *(nearer(ratio) for ratio in ratios)])
    return svg.covering((-100 * farthest, 100 * farthest), RIM, svg.WIDTH - RIM)


def nearer(ratio: Ratio) -> float:
    """How far the estimate and the closer end of its interval reach from zero; unbounded ends do not count."""
    ends = [abs(end) for end in (ratio.low, ratio.high) if end is not None]
    return 1.1 * min(ends, default=0.0)


def legend() -> Iterator[Markup]:
    for k, name in enumerate(FIGURES):
        x = RIM + k * 96
        yield svg.dot(x + 4, 10, svg.COLOURS[k])
        yield svg.text(x + 14, 14, LABELS[name])


def decision(line: Line, scale: svg.Scale, y: float) -> Iterator[Markup]:
    if line.floor is not None:
        left, right = (scale.clamp(100 * end, 0) for end in (-line.floor, line.floor))
        yield tag("rect", x=left, y=y + HEAD - 6, width=right - left, height=LANE * len(FIGURES), fill="#8a8f9830")
    verdict = line.verdict or line.status
    yield svg.text(RIM, y + 12, f"{line.name}: {verdict}", fill=svg.VERDICTS.get(verdict, svg.INVALID))
    for k, name in enumerate(FIGURES):
        if ratio := getattr(line, name):
            yield from interval(ratio, scale, y + HEAD + LANE * k + 4, svg.COLOURS[k])


def interval(ratio: Ratio, scale: svg.Scale, y: float, colour: str) -> Iterator[Markup]:
    ends = [None if end is None else 100 * expm1(end) for end in (ratio.low, ratio.high)]
    low, high = scale.clamp(ends[0], scale.low), scale.clamp(ends[1], scale.high)
    yield svg.line(low, y, high, y, colour, 2)
    if ends[0] is None or ends[0] < scale.low:
        yield svg.text(low - 4, y + 4, "\N{BLACK LEFT-POINTING TRIANGLE}", "middle", colour)
    if ends[1] is None or ends[1] > scale.high:
        yield svg.text(high + 4, y + 4, "\N{BLACK RIGHT-POINTING TRIANGLE}", "middle", colour)
    yield svg.dot(scale.clamp(100 * expm1(ratio.estimate), 0), y, colour)
