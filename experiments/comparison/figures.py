"""What the answers of a comparison say arm by arm, and the file that they go to while they come in.

The surprise: an arm's own figures are shown and decide nothing. Between them lie the drifts that pairing cancels.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from math import log
from typing import TYPE_CHECKING

from analysis.pairs import ARMS, FIGURES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TextIO

    from analysis.pairs import Answer, Arm, Figure, Pairs

NAMES: dict[Figure, tuple[str, float]] = {
    "step_time": ("step_ms", 1e3),
    "tpot": ("mean_tpot_ms", 1e3),
    "accept": ("accept_length", 1.0),
}


def by_arm(pairs: Pairs) -> dict[Arm, dict[str, float]]:
    """Each figure of each arm over all blocks, a ratio of sums."""
    shown: dict[Arm, dict[str, float]] = {arm: {} for arm in ARMS}
    for figure in FIGURES:
        above, below = pairs.ratio(figure)
        name, unit = NAMES[figure]
        for arm, value in zip(ARMS, above.sum(axis=1) / below.sum(axis=1), strict=True):
            shown[arm][name] = unit * float(value)
    return shown


def log_ratio(figure: Figure, candidate: Mapping[str, float], baseline: Mapping[str, float]) -> float:
    """Of two cells' figures, or of two arms': log(candidate / baseline), without the interval that only blocks have."""
    name, _ = NAMES[figure]
    return log(candidate[name] / baseline[name])


def note(out: TextIO, block: int, answers: Sequence[Answer]) -> None:
    """A line per answer, on disk when the block is over."""
    assert all(answer.block == block for answer in answers)
    out.writelines(json.dumps(asdict(answer)) + "\n" for answer in answers)
    out.flush()
