"""The plots that a study's records make, each under the name of its file; the page and MLflow show the same ones.

The surprise: which there are depends on what there is. A sweep has no path and an A/B no depths, and a plot with
nothing in it is not drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.ledger import lines
from analysis.report import curves, forest, trajectory

if TYPE_CHECKING:
    from markupsafe import Markup

    from analysis.dossier import Study

CAPTIONS = {
    "paired_ratios.svg": "Candidate over baseline, per cent; intervals may be looked at after every block, accept "
    "length's is bootstrapped. Grey: the A/A floor.",
    **{
        f"trajectory_{figure}.svg": f"{title}: the path of what was kept; empty circles did not stay."
        for figure, (title, _) in trajectory.FIGURES.items()
    },
    "accept_by_position.svg": "How often draft k and all before it were accepted.",
    "step_by_rows.svg": "What a step costs by the rows that the target verifies in it.",
}


def plots(study: Study) -> dict[str, Markup]:
    drawn = {
        "paired_ratios.svg": forest.plot([*lines(study)]),
        **{f"trajectory_{figure}.svg": trajectory.plot(study, figure) for figure in trajectory.FIGURES},
        "accept_by_position.svg": curves.accept_by_position(study.cells),
        "step_by_rows.svg": curves.step_by_rows(study.cells),
    }
    return {name: plot for name, plot in drawn.items() if plot is not None}
