"""How each engine is started: the cell's spec as a command line, in SGLang's own flag names.

The surprise: `engine.command` replaces the program and keeps the flags, so that another build of the same server (a
second checkout, a wrapper such as numactl, a fake in the tests) is measured under identical arguments.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.command import Command
from experiments.ports import HOST

if TYPE_CHECKING:
    from experiments.spec import CellSpec, SpeculationSpec

ROOT = Path(__file__).resolve().parents[1]
"""Where our packages lie; children find them there whether or not the project is installed."""

PROGRAMS = {"ling": (sys.executable, "-m", "ling_runtime.server")}


def server_command(cell: CellSpec, *, port: int, served_name: str) -> Command:
    engine = cell.engine
    flags: dict[str, str | int | bool | None] = {
        "--model-path": cell.model.path,
        "--host": HOST,
        "--port": port,
        "--served-model-name": served_name,
        "--dtype": engine.dtype,
        "--device": engine.device,
        "--num-threads": None if engine.name == "sglang" else engine.num_threads,  # ours alone
        "--max-running-requests": engine.max_running_requests,
        "--context-length": engine.context_length,
        "--random-seed": engine.random_seed,
        **_speculation_flags(cell.speculation),
    }
    argv = [*(engine.command or PROGRAMS[engine.name])]
    for flag, value in flags.items():
        if value is True:
            argv.append(flag)
        elif value is not None and value is not False:
            argv += [flag, str(value)]
    for operator, variant in sorted(cell.kernels.items()):
        argv += ["--kernel", f"{operator}={variant}"]
    return Command((*argv, *engine.extra_args), {**child_env(engine.num_threads), **cell.env})


def child_env(threads: int) -> dict[str, str]:
    """What every child of ours is given: fixed thread counts, no downloads, no buffered log."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }


def _speculation_flags(speculation: SpeculationSpec) -> dict[str, str | int | bool | None]:
    match speculation.algorithm:
        case "none":
            return {}
        case "nextn":
            return {
                "--speculative-algorithm": "NEXTN",
                "--speculative-num-steps": speculation.num_steps,
                "--speculative-eagle-topk": 1,
                "--speculative-num-draft-tokens": speculation.num_draft_tokens,
            }
        case "dspark":
            return {
                "--speculative-algorithm": "DSPARK",
                "--speculative-draft-model-path": speculation.draft_path,
                "--speculative-dspark-block-size": speculation.block_size,
                "--speculative-dspark-verify-mode": speculation.verify_mode,
                "--speculative-dspark-scheduler": speculation.scheduler,
                "--speculative-dspark-confidence-sts-path": speculation.sts_path,
                "--speculative-dspark-sps-table-path": speculation.cost_table_path,
                "--speculative-use-block-verification": speculation.acceptance == "block",
                "--speculative-dspark-greedy-draft": speculation.greedy_draft,
                "--speculative-dspark-allow-fallback": speculation.allow_fallback,
            }
