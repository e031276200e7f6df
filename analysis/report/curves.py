"""Two plots of cells side by side: how often each draft is accepted, and what a step costs by the rows it verifies.

Together they are what a depth is chosen by. The surprise: a cell that was invalid is not drawn, however good it looks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.report import svg

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markupsafe import Markup

    from analysis.dossier import Filed

LEFT, RIGHT, TOP, BOTTOM = 44, 12, 24, 210
LEGEND = 20


def accept_by_position(cells: Sequence[Filed]) -> Markup | None:
    """Share of steps in which draft k and all before it were accepted."""
    series = {cell.name: row for cell in _valid(cells) if (row := cell.record["metrics"].get("accept_by_position"))}
    if not series:
        return None
    deepest = max(len(row) for row in series.values())
    x = svg.Scale(0.5, deepest + 0.5, LEFT, svg.WIDTH - RIGHT)
    y = svg.Scale(0, 1, BOTTOM, TOP)
    content = [*svg.upwards(y, LEFT, svg.WIDTH - RIGHT), svg.text(LEFT, 12, "share of steps, by draft position")]
    every = max(1, deepest // 8)
    content += [svg.text(x(k), BOTTOM + 16, str(k), "middle") for k in range(1, deepest + 1, every)]
    for k, row in enumerate(series.values()):
        points = [(x(position), y(share)) for position, share in enumerate(row, 1)]
        content += [svg.curve(points, _colour(k), dashed=_again(k)), *(_dot(*point, k, r=3) for point in points)]
    content += _legend([*series])
    return svg.drawing("Accepted drafts by position", BOTTOM + 28 + LEGEND * len(series), content)


def step_by_rows(cells: Sequence[Filed]) -> Markup | None:
    """Step time over rows that the target verified for one request in one step; a cell without drafts verifies one."""
    points = [(cell.name, rows, cell.record["metrics"]["step_ms"]) for cell in _valid(cells) if (rows := _rows(cell))]
    if len(points) < 2:
        return None
    x = svg.covering([rows for _, rows, _ in points], LEFT, svg.WIDTH - RIGHT, zero=True)
    y = svg.covering([step for *_, step in points], BOTTOM, TOP, zero=True)
    content = [*svg.upwards(y, LEFT, svg.WIDTH - RIGHT), svg.text(LEFT, 12, "step time, ms, by rows verified")]
    content += svg.across(x, TOP, BOTTOM)
    content += [_dot(x(rows), y(step), k) for k, (_, rows, step) in enumerate(points)]
    content += _legend([f"{name}: {rows:.1f} rows, {step:.3f} ms" for name, rows, step in points])
    return svg.drawing("Step time by rows verified", BOTTOM + 28 + LEGEND * len(points), content)


def _valid(cells: Sequence[Filed]) -> Iterator[Filed]:
    return (cell for cell in cells if cell.record["status"] == "valid" and cell.record.get("metrics"))


def _rows(cell: Filed) -> float | None:
    """As the server counted them; where it does not, a chain of drafts is verified whole, and that length is known."""
    measured, proved = cell.record["metrics"], cell.record.get("activation") or {}
    rows: float | None = measured.get("verified_rows_per_step")
    if rows is None and measured["accept_source"] == "definition":
        return 1.0
    return rows or proved.get("observed", {}).get("speculation.num_draft_tokens")


def _legend(texts: Sequence[str]) -> Iterator[Markup]:
    for k, words in enumerate(texts):
        y = BOTTOM + 36 + LEGEND * k
        yield _dot(LEFT + 4, y - 4, k)
        yield svg.text(LEFT + 16, y, words)


def _dot(x: float, y: float, k: int, r: float = 4) -> Markup:
    return svg.dot(x, y, _colour(k), hollow=_again(k), r=r)


def _colour(k: int) -> str:
    return svg.COLOURS[k % len(svg.COLOURS)]


def _again(k: int) -> bool:
    """A colour that another series has: dashed and hollow then."""
    return k // len(svg.COLOURS) % 2 == 1
