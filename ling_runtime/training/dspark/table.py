"""Results of `ablation` as tables: `python -m ling_runtime.training.dspark.table results.jsonl`.

A difference to the plain recipe is taken between runs of one seed and one number of steps, so what all presets owe to
these cancels; its interval is Student's over the pairs, and of one pair there is none.
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
    """One line a preset: pairs, parameters, accept length, that of the plain runs beside it, difference, ECE."""
    by_preset: dict[str, dict[tuple[int, int], Result]] = defaultdict(dict)
    for result in results:
        if not result["ship"]:
            by_preset[result["preset"]][result["seed"], result["steps"]] = result
    base = by_preset.pop(BASE)
    return [_row(preset, runs, base) for preset, runs in by_preset.items()]


def _row(preset: str, runs: dict[tuple[int, int], Result], base: dict[tuple[int, int], Result]) -> str:
    pairs = [(runs[key], base[key]) for key in sorted(runs.keys() & base.keys())]
    lengths, plain = ([pair[side]["accept_length"] for pair in pairs] for side in (0, 1))
    middle, half = difference(lengths, plain)
    change = f"{middle:+.2f}" if half is None else f"{middle:+.2f} \u00b1 {half:.2f}"
    errors = " / ".join(f"{mean(mean(pair[side]['ece']) for pair in pairs):.3f}" for side in (0, 1))
    count = f"{pairs[0][0]['parameters']:,}"
    return f"| {preset} | {len(pairs)} | {count} | {mean(lengths):.2f} | {mean(plain):.2f} | {change} | {errors} |"


def main() -> None:
    results = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    print("| preset | pairs | parameters | accept length | plain | difference | ECE / plain |\n" + "|---" * 7 + "|")
    print("\n".join(rows(results)))


if __name__ == "__main__":
    main()
