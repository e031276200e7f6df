"""`python -m experiments.tile_sweep`: every candidate tile of the cold-weight kernels at full width, on a card.

The tables in `ling_runtime/ops/triton/*.py` come from here. A kernel is timed in a captured graph that walks through
the copies of its operands (tile_cases.py). `--warm I/N` compiles only its share of the cases, so that N processes can
fill Triton's cache side by side before the one that measures.
"""

from __future__ import annotations

import argparse
import statistics
from typing import TYPE_CHECKING

import torch

from experiments import allowed, card
from experiments.tile_cases import cases
from ling_runtime.config import WINDOW_ROWS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.tile_cases import Case


def microseconds(case: Case, rounds: int = 7) -> float:
    """Median over graph replays of one pass through all copies, per launch."""
    case.launch(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(case.copies):
            case.launch(i)
    times = []
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return float(statistics.median(times[1:])) * 1e3 / case.copies


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time tile candidates on cold weights.")
    parser.add_argument("--warm", type=allowed.share, metavar="I/N", help="only compile every N-th case from I")
    parser.add_argument("--rows", type=allowed.whole(1, WINDOW_ROWS), nargs="+", default=[1, 6])
    return parser.parse_args(argv)


def main() -> None:
    options = arguments()
    card.required()
    chosen = [*cases(options.rows)]
    if options.warm:
        first, step = options.warm
        for case in chosen[first::step]:
            case.launch(0)
        return
    for case in chosen:
        try:
            us = microseconds(case)
        except Exception as error:  # noqa: BLE001 - a tile too large for the card is a result here
            print(f"{case.name:<18}{case.tiles!s:<60} {type(error).__name__}")
            continue
        print(f"{case.name:<18}{case.tiles!s:<60}{us:>9.2f} us {case.megabytes / us:>8.2f} TB/s")


if __name__ == "__main__":
    main()
