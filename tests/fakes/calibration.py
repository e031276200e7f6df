"""Stands in for `python -m ling_runtime.calibration`: writes files of the right form at once, or fails on demand.

`python tests/fakes/calibration.py [--fault PART:FAULT] PART <arguments>`.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path

NO_MEMORY = "RuntimeError: [enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory: you tried"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="")
    parser.add_argument("part", choices=("collect", "fit", "profile"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--samples", type=Path)
    parser.add_argument("--requests", type=int, nargs="+")
    parser.add_argument("--speculative-dspark-block-size", type=int)
    options, _ = parser.parse_known_args()
    part, _, fault = options.fault.partition(":")
    if part == options.part and (code := fail(fault, options.out)) is not None:
        return code
    options.out.write_text(content(options))
    print(f"{options.part} is done")
    return 0


def fail(fault: str, out: Path) -> int | None:
    out.write_text("half")
    match fault:
        case "stall":
            time.sleep(600)
        case "die":
            signal.raise_signal(signal.SIGKILL)
        case "no_memory":
            print(NO_MEMORY)
            return 1
        case "refuse":
            print("error: the fake refuses on purpose")
            return 2
    return None


def content(options: argparse.Namespace) -> str:
    drafts = options.speculative_dspark_block_size
    match options.part:
        case "collect":
            return str(len(options.prompts.read_text().splitlines()))
        case "fit":
            errors = [0.01 * k for k in range(1, drafts + 1)]
            halved = [error / 2 for error in errors]
            figures = {"temperatures": [1.25] * drafts, "ece_before": errors, "ece_after": halved}
            bins = [[{"predicted": 0.1 * k, "observed": 0.5, "count": 9}] for k in range(1, drafts + 1)]
            figures |= {"conditional_ece_before": halved, "conditional_ece_after": errors}
            figures |= {"reliability_before": bins, "reliability_after": bins}
            return json.dumps(figures | {"num_samples": int(options.samples.read_text())})
        case _:
            constant = {"bias_seconds": 0.005, "alpha_seconds": [0.0] * len(options.requests)}
            rising = {"m_probes": [1, 101], "theta_seconds": [0.0, 0.1]}
            return json.dumps({**constant, **rising, "bs_probes": options.requests})


if __name__ == "__main__":
    sys.exit(main())
