"""Our own runtime as an engine: its flags, its checkpoints, its kernels.

The surprise: nothing here knows what fits what. Model, draft and artifacts are read with the runtime's own code, and
the server will read them again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from experiments import speculation
from experiments.child import child_env
from experiments.command import Command
from experiments.engines import ling_activation, simulation
from experiments.engines.command_line import argv
from experiments.engines.interface import Engine
from experiments.errors import ConfigError
from experiments.kernels import check_kernels
from ling_runtime.config import ConfigError as ModelConfigError
from ling_runtime.config import ModelConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from experiments.engines.command_line import Value
    from experiments.spec import CellSpec, SpeculationSpec

PROGRAM = (sys.executable, "-m", "ling_runtime.server")


class Ling(Engine):
    name = "ling"
    algorithms: ClassVar = ("none", "nextn", "dspark")

    def check(self, cell: CellSpec) -> None:
        for key in ("num_threads", "max_running_requests", "random_seed"):
            if getattr(cell.engine, key) is None:
                raise ConfigError(f"engine.{key}", "null leaves it open; engine=ling needs a number")
        if simulation.LENGTH in cell.env:
            raise ConfigError(
                f"env.{simulation.LENGTH}", "ling_runtime simulates no acceptance; allowed with engine=sglang"
            )
        path = Path(cell.model.path)
        try:
            config = ModelConfig.from_pretrained(path)
        except ModelConfigError as error:
            raise ConfigError("model.path", str(error)) from error
        if not [*path.glob("*.safetensors")]:
            raise ConfigError("model.path", f"{path} holds no *.safetensors; expected a local checkpoint directory")
        tokenizer = Path(cell.model.tokenizer_path or path)
        if not (tokenizer / "tokenizer.json").is_file():
            raise ConfigError("model.tokenizer_path", f"{tokenizer} holds no tokenizer.json")
        speculation.check(cell, config)
        wanted = (cell.workload.input_len or 0) + cell.workload.output_len
        context = cell.engine.context_length or config.max_position_embeddings
        if wanted > context:
            raise ConfigError("workload", f"input_len + output_len = {wanted} exceeds the context of {context} tokens")
        check_kernels(cell.kernels)

    def command(self, cell: CellSpec, *, port: int, served_name: str) -> Command:
        engine = cell.engine
        flags: dict[str, Value] = {
            "--model-path": cell.model.path,
            "--host": engine.host,
            "--port": port,
            "--served-model-name": served_name,
            "--dtype": engine.dtype,
            "--device": engine.device,
            "--num-threads": engine.num_threads,
            "--max-running-requests": engine.max_running_requests,
            "--context-length": engine.context_length,
            "--random-seed": engine.random_seed,
            **_speculation_flags(cell.speculation),
        }
        kernels = [part for pair in sorted(cell.kernels.items()) for part in ("--kernel", "=".join(pair))]
        line = (*argv(cell, PROGRAM, flags), *kernels, *engine.extra_args)
        return Command(line, {**child_env(engine.threads), **cell.env})

    def expected(self, cell: CellSpec) -> dict[str, Any]:
        return ling_activation.expected(cell)

    def observed(self, cell: CellSpec, info: Mapping[str, Any], log: str) -> dict[str, Any]:
        return ling_activation.observed(cell, info)

    def remarks(self, cell: CellSpec, info: Mapping[str, Any], log: str) -> Iterator[str]:
        return ling_activation.fallbacks(cell.speculation, info)


def _speculation_flags(speculation: SpeculationSpec) -> dict[str, Value]:
    match speculation.algorithm:
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
        case _:
            return {}
