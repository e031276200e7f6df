"""What every plot is drawn with: a drawing of fixed width, scales, ticks, marks.

The surprise: all plots are 360 units wide, the width of a phone, and are never scaled below it; so their text is as
large as the page's, and a plot that has many rows grows downwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log10
from typing import TYPE_CHECKING

from analysis.report.markup import tag

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from markupsafe import Markup

WIDTH = 360
TEXT = 12
ADVANCE = 6.6
"""Of a letter of that size, about."""
COLOURS = ("#2f6fc4", "#c8681c", "#1d8a78", "#8a55b5", "#b8486a", "#6b7280")
"""Of series, apart also for most colour-blind readers, and dark enough on white and light enough on black."""
VERDICTS = {
    "keep": "#1d8a5c",
    "reject": "#c43d3d",
    "inconclusive": "#75808f",
    "skipped": "#75808f",
    "baseline": "#2f6fc4",
}
INVALID = "#a8701c"
FAINT = "#8a8f9855"
NAMESPACE = "http://www.w3.org/2000/svg"


@dataclass(frozen=True)
class Scale:
    """Values low..high to places start..end."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def clamp(self, value: float | None, missing: float) -> float:
        """The place of a value, at the rim where it is beyond or there is none."""
        wanted = missing if value is None else value
        return self(min(max(wanted, self.low), self.high))


def covering(values: Iterable[float], start: float, end: float, *, zero: bool = False) -> Scale:
    """A scale whose ends are round and which holds all values, and zero where it is wanted."""
    held = [*values, *([0.0] if zero else [])]
    low, high = min(held), max(held)
    if low == high:
        low, high = low - (abs(low) or 1) / 10, high + (abs(high) or 1) / 10
    step = round_step((high - low) / 4)
    return Scale(floor(low / step) * step, ceil(high / step) * step, start, end)


def round_step(rough: float) -> float:
    """1, 2 or 5 times a power of ten, no smaller than `rough`."""
    power = 10.0 ** floor(log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def ticks(scale: Scale) -> list[float]:
    step = round_step((scale.high - scale.low) / 5)
    first = ceil(scale.low / step - 1e-9)
    return [k * step for k in range(first, floor(scale.high / step + 1e-9) + 1)]


def shown(value: float) -> str:
    """A tick's text."""
    return f"{value:.6g}" if value else "0"


def drawing(title: str, height: float, content: Iterable[str]) -> Markup:
    """A plot that stands by itself, also outside of a page; `title` is read out where it cannot be seen."""
    return tag(
        "svg",
        tag("title", title),
        *content,
        xmlns=NAMESPACE,
        viewBox=f"0 0 {WIDTH} {height:g}",
        role="img",
        font_family="system-ui, sans-serif",
        font_size=TEXT,
        fill="currentColor",
    )


def alone(plot: Markup) -> str:
    """A file of its own: on white, as nothing says what it will lie on, and with a size, twice that on the page."""
    ground = tag("rect", width="100%", height="100%", fill="#fff")
    head, _, rest = str(plot).partition("</title>")
    height = float(head.partition('viewBox="')[2].split('"')[0].split()[-1])
    sized = head.replace("<svg ", f'<svg width="{2 * WIDTH}" height="{2 * height:g}" ', 1)
    return f"{sized}</title>{ground}{rest}\n"


def text(x: float, y: float, content: str, anchor: str | None = None, fill: str | None = None) -> Markup:
    """Cut where it would leave the drawing; the page has every name in full. Lines behind it stop short of it."""
    room = int((WIDTH - x) / ADVANCE) if anchor is None else len(content)
    fitting = content if len(content) <= room else f"{content[: room - 3]}..."
    halo: dict[str, str | float] = {"paint_order": "stroke", "stroke": "var(--ground, #fff)", "stroke_width": 3}
    return tag("text", fitting, x=x, y=y, text_anchor=anchor, fill=fill, **halo)


def line(x1: float, y1: float, x2: float, y2: float, stroke: str = FAINT, width: float = 1) -> Markup:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=stroke, stroke_width=width)


def dot(x: float, y: float, colour: str, *, hollow: bool = False, r: float = 4) -> Markup:
    return tag("circle", cx=x, cy=y, r=r, fill="none" if hollow else colour, stroke=colour, stroke_width=2)


def curve(points: Sequence[tuple[float, float]], colour: str, *, dashed: bool = False) -> Markup:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashes = "5 3" if dashed else None
    return tag("polyline", points=path, fill="none", stroke=colour, stroke_width=2, stroke_dasharray=dashes)


def across(scale: Scale, top: float, bottom: float, unit: str = "") -> Iterable[Markup]:
    """Vertical lines at the ticks of a horizontal scale, with their values below."""
    for value in ticks(scale):
        x = scale(value)
        yield line(x, top, x, bottom)
        yield text(x, bottom + TEXT + 2, f"{shown(value)}{unit}", "middle")


def upwards(scale: Scale, left: float, right: float) -> Iterable[Markup]:
    """Horizontal lines at the ticks of a vertical scale, with their values on the left."""
    for value in ticks(scale):
        y = scale(value)
        yield line(left, y, right, y)
        yield text(left - 4, y + 4, shown(value), "end")
