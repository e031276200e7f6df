"""`python -m ling_runtime.calibration collect|fit|profile ...`: the files of scheduled verification, on this machine.

    collect  --out samples.pt                       confidences and outcomes on prompts that training never saw
    fit      --samples samples.pt --out sts.json    temperatures, for --speculative-dspark-confidence-sts-path
    profile  --out cost_table.json                  step times, for --speculative-dspark-sps-table-path

All three take the target and the draft, for an artifact is bound to them (and a cost table to the machine, the dtype,
the number of threads and the kernels of a step). Exit code 2 for arguments or files that do not fit.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import torch

from ling_runtime.arguments import kernels_of
from ling_runtime.calibration import samples
from ling_runtime.calibration.collect import collect
from ling_runtime.calibration.fit import fitted
from ling_runtime.calibration.fit import shown as shown_fit
from ling_runtime.calibration.profile import cells_json, profile, table
from ling_runtime.calibration.profile import shown as shown_profile
from ling_runtime.calibration.session import Checkpoints, held_out_prompts, read_prompts
from ling_runtime.config import ConfigError
from ling_runtime.draft_config import DraftConfig
from ling_runtime.speculation.dspark import artifact


def main() -> int:
    given = _parser().parse_args()
    if given.num_threads is not None:
        torch.set_num_threads(given.num_threads)
    try:
        checkpoints = Checkpoints(
            target=given.model_path,
            draft=given.speculative_draft_model_path,
            block_size=given.speculative_dspark_block_size,
            device=given.device,
            dtype=given.dtype,
            kernels=kernels_of(given.kernel),
        )
        given.run(given, checkpoints)
    except ConfigError as error:
        sys.stderr.write(f"ling_runtime.calibration: error: {error}\n")
        return 2
    return 0


def run_collect(given: argparse.Namespace, checkpoints: Checkpoints) -> None:
    texts = read_prompts(given.prompts) if given.prompts else held_out_prompts(given.seed, given.num_prompts)
    name = given.prompts.name if given.prompts else f"heldout problems, seed {given.seed}"
    executor = checkpoints.executor(given.max_running_requests)
    found = collect(
        executor,
        checkpoints.encode(texts),
        given.max_new_tokens,
        temperature=given.temperature,
        progress=lambda done: print(f"collect {done}/{len(texts)}", flush=True),
    )
    name += f", temperature {given.temperature:g}"
    samples.write(given.out, found, checkpoints.identity(executor.window - 1), name)
    length = 1 + float(found.correct.sum(1).float().mean())
    print(f"{len(found.raw)} steps of {len(texts)} requests, accept length {length:.3f} -> {given.out}")


def run_fit(given: argparse.Namespace, checkpoints: Checkpoints) -> None:
    gamma = checkpoints.block_size or DraftConfig.from_pretrained(checkpoints.draft).block_size
    identity = checkpoints.identity(gamma)
    content = fitted(*samples.read(given.samples, identity))
    artifact.write(given.out, identity, content)
    print(f"{shown_fit(content)}\n-> {given.out}")


def run_profile(given: argparse.Namespace, checkpoints: Checkpoints) -> None:
    most = max(given.requests)
    executor = checkpoints.executor(most)
    prompts = [ids[: given.prompt_tokens] for ids in checkpoints.encode(held_out_prompts(given.seed, most))]
    seconds = profile(
        executor,
        prompts,
        sorted(set(given.requests)),
        rounds=given.rounds,
        steps=given.steps,
        progress=lambda done: print(f"profile {done}/{given.rounds}", flush=True),
    )
    cost = table(seconds)
    cells = cells_json(seconds, cost)
    content = {**cost.to_json(), "steps_per_cell": given.rounds * given.steps, "cells": cells}
    artifact.write(given.out, checkpoints.identity(executor.window - 1), content)
    print(f"{shown_profile(cells)}\n-> {given.out}")


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    add = shared.add_argument
    add("--model-path", required=True, metavar="DIR", help="the target")
    add("--speculative-draft-model-path", required=True, metavar="DIR", help="the draft")
    add("--speculative-dspark-block-size", type=_positive, metavar="N", help="default: the draft's")
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--dtype", choices=("float32", "bfloat16"), default="float32")
    add("--num-threads", type=_positive, metavar="N", help="of torch; a cost table is bound to it")
    add("--kernel", action="extend", nargs="+", default=[], metavar="OP=VARIANT", help="as the server's; bound, too")
    add("--out", type=_file, required=True, metavar="FILE")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True, metavar="collect|fit|profile")

    part = parts.add_parser("collect", parents=[shared], help="note confidences and what came of them")
    part.add_argument("--prompts", type=Path, metavar="FILE", help="JSONL with a text a line; default: generated ones")
    part.add_argument("--num-prompts", type=_positive, default=64, metavar="N", help="generated prompts")
    part.add_argument("--seed", type=int, default=3, help="of the generated prompts")
    part.add_argument("--max-new-tokens", type=_positive, default=256, metavar="N", help="behind each prompt")
    part.add_argument("--temperature", type=_temperature, default=0.0, metavar="T", help="0: greedy, the default")
    part.add_argument("--max-running-requests", type=_positive, default=8, metavar="N")
    part.set_defaults(run=run_collect)

    part = parts.add_parser("fit", parents=[shared], help="temperatures from one half, errors on the other")
    part.add_argument("--samples", type=Path, nargs="+", required=True, metavar="FILE", help="of collect, or SGLang's")
    part.set_defaults(run=run_fit)

    part = parts.add_parser("profile", parents=[shared], help="time steps by requests and rows")
    part.add_argument("--requests", type=_positive, nargs="+", default=[1, 2, 4, 8], metavar="N")
    part.add_argument("--rounds", type=_positive, default=12, metavar="N", help="visits to each cell")
    part.add_argument("--steps", type=_positive, default=3, metavar="N", help="timed steps of a visit")
    part.add_argument("--prompt-tokens", type=_positive, default=256, metavar="N")
    part.add_argument("--seed", type=int, default=3, help="of the prompts")
    part.set_defaults(run=run_profile)
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}: must be at least 1")
    return value


def _temperature(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: must be a number of at least 0")
    return value


def _file(text: str) -> Path:
    """Checked before minutes of work, not after."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: is a directory; expected a file")
    return path


if __name__ == "__main__":
    sys.exit(main())
