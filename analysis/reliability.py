"""Reliability of a confidence head as one SVG: claimed against observed, a panel for each draft position.

On the diagonal a claim of 0.7 is right in seven of ten steps. Drawn without a plotting library, for it is lines and
circles. The surprise: the area of a circle is its share of the steps, since a bin with three steps in it may stand
anywhere and means nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

NAMESPACE = "http://www.w3.org/2000/svg"
PANEL, GAP, TOP = 170, 30, 50
PER_LINE = 4
LARGEST = 9.0
"""Radius of a circle that holds every step."""

COLOURS = {"before": "#b0561f", "after": "#1f6fb0"}


def reliability_svg(name: str, sts: Mapping[str, Any]) -> str:
    """`sts` as the fit writes it: temperatures, errors and bins of the product up to each position."""
    drafts = len(sts["temperatures"])
    columns, lines = min(drafts, PER_LINE), -(-drafts // PER_LINE)
    width, height = GAP + columns * (PANEL + GAP), TOP + lines * (PANEL + GAP)
    title = f"{escape(name)}: are drafts 1..k all right as often as claimed? {_legend()}"
    panels = [_panel(sts, k, *_corner(k)) for k in range(drafts)]
    head = f'<svg xmlns="{NAMESPACE}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="9">'
    paper = f'<rect width="{width}" height="{height}" fill="white"/>'
    return "\n".join([head, paper, f'<text x="{GAP}" y="18">{title}</text>', *panels, "</svg>"]) + "\n"


def _legend() -> str:
    return " ".join(f'<tspan fill="{colour}">{when}</tspan>' for when, colour in COLOURS.items())


def _corner(k: int) -> tuple[int, int]:
    return GAP + (k % PER_LINE) * (PANEL + GAP), TOP + (k // PER_LINE) * (PANEL + GAP)


def _panel(sts: Mapping[str, Any], k: int, x: int, y: int) -> str:
    errors = " to ".join(f"{sts[f'ece_{when}'][k]:.3f}" for when in COLOURS)
    label = escape(f"k = {k + 1}, T = {sts['temperatures'][k]:.2f}, ECE {errors}")
    frame = f'<rect width="{PANEL}" height="{PANEL}" fill="none" stroke="#ccc"/>'
    diagonal = f'<line x1="0" y1="{PANEL}" x2="{PANEL}" y2="0" stroke="#ccc"/>'
    curves = [curve for when in COLOURS for curve in _curve(sts[f"reliability_{when}"][k], COLOURS[when])]
    return "\n".join(
        [f'<g transform="translate({x} {y})">', f'<text y="-4">{label}</text>', frame, diagonal, *curves, "</g>"]
    )


def _curve(bins: Sequence[Mapping[str, float]], colour: str) -> Iterator[str]:
    """Claimed to the right, observed upwards."""
    total = sum(row["count"] for row in bins)
    points = [(row["predicted"] * PANEL, (1 - row["observed"]) * PANEL, row["count"] / total) for row in bins]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
    yield f'<polyline points="{path}" fill="none" stroke="{colour}"/>'
    for x, y, share in points:
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{LARGEST * share**0.5:.1f}" fill="{colour}" fill-opacity="0.5"/>'
