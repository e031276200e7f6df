"""Results of `ablation` as tables: `python -m ling_runtime.training.dspark.table results.jsonl`.

A difference to the plain recipe is taken seed by seed, so what all presets owe to a seed cancels; its interval is
Student's over the seeds, and of one seed there is none.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from scipy.stats import t as student

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Result = dict[str, Any]
BASE = "plain"


def difference(values: Sequence[float], base: Sequence[float]) -> tuple[float, float | None]:
    """Mean of the paired differences and half of its 95 % interval."""
    differences = [a - b for a, b in zip(values, base, strict=True)]
    if len(differences) < 2:
        return mean(differences), None
    spread = stdev(differences) / len(differences) ** 0.5
    return mean(differences), float(student.ppf(0.975, len(differences) - 1)) * spread


def rows(results: Iterable[Result]) -> list[str]:
    """One line a preset: seeds, parameters, accept length, its difference to the plain recipe, calibration error."""
    by_preset: dict[str, dict[int, Result]] = defaultdict(dict)
    for result in results:
        if not result["ship"]:
            by_preset[result["preset"]][result["seed"]] = result
    base = by_preset[BASE]
    lines = []
    for preset, runs in by_preset.items():
        seeds = sorted(runs.keys() & base.keys())
        lengths = [runs[seed]["accept_length"] for seed in seeds]
        ece = mean(mean(runs[seed]["ece"]) for seed in seeds)
        parameters = f"{runs[seeds[0]]['parameters']:,}"
        change = _change(lengths, [base[seed]["accept_length"] for seed in seeds]) if preset != BASE else ""
        lines.append(f"| {preset} | {len(seeds)} | {parameters} | {mean(lengths):.3f} | {change} | {ece:.4f} |")
    return lines


def _change(lengths: Sequence[float], base: Sequence[float]) -> str:
    middle, half = difference(lengths, base)
    return f"{middle:+.3f}" if half is None else f"{middle:+.3f} ± {half:.3f}"


def main() -> None:
    results = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    print("| preset | seeds | parameters | accept length | difference | mean ECE |\n|---|---|---|---|---|---|")
    print("\n".join(rows(results)))


if __name__ == "__main__":
    main()
