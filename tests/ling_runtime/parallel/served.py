"""`python -m tests.ling_runtime.parallel.served`: the shipped miniature on several ranks, driven as a server drives it.

Without a server, so that a machine with torch and Triton alone can run it. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ling_runtime
from ling_runtime.arguments import parse
from ling_runtime.executor.build import ExecutorSettings, load_executor
from ling_runtime.executor.graph_settings import GraphSettings
from ling_runtime.parallel.lead import LeadExecutor
from ling_runtime.parallel.ranks import Ranks
from tests.ling_runtime.executor.driving import greedy, prompt_of

if TYPE_CHECKING:
    from ling_runtime.executor.interface import Executor

SHIPPED = Path(ling_runtime.__file__).parent / "checkpoints/ling_tiny"
TOKENS = 96
PROMPTS = [prompt_of(seed, 20 + 37 * seed) for seed in range(6)]


def answered(executor: Executor) -> list[list[int]]:
    """TOKENS of each of PROMPTS, three at a time."""
    return greedy(executor, PROMPTS, TOKENS, 3)


def settings(steps: int, dtype: str, device: str) -> ExecutorSettings:
    base: dict[str, Any] = {"num_steps": steps, "context_length": 512, "dtype": dtype, "device": device}
    if device == "cpu":
        return ExecutorSettings(**base)
    from ling_runtime.executor.graphs import RANK_VARIANTS  # noqa: PLC0415 - it imports Triton
    from ling_runtime.ops.prompt import PROMPT_VARIANTS  # noqa: PLC0415

    return ExecutorSettings(**base, graphs=GraphSettings(overlap=True), kernels=RANK_VARIANTS | PROMPT_VARIANTS)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    server = parse(["--model-path", str(SHIPPED), "--device", options.device])
    wanted = settings(options.steps, options.dtype, options.device)
    with Ranks(options.ranks) as ranks:
        group = ranks.join(server, wanted)
        executor = LeadExecutor(load_executor(str(SHIPPED), wanted, group), ranks, group, options.device)
        ranks.wait()
        print(json.dumps({"tokens": answered(executor), "report": executor.executor_report()}))
        ranks.end(0)


if __name__ == "__main__":
    main()
