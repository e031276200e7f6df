"""Our own runtime as an engine: its flags, its checkpoints, its kernels.

The surprise: nothing here knows what fits what. Model, draft and artifacts are read with the runtime's own code, and
the server will read them again.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from experiments import speculation
from experiments.child import child_env
from experiments.command import Command
from experiments.engines import ling_activation, simulation
from experiments.engines.command_line import argv
from experiments.engines.interface import Engine
from experiments.engines.ling_activation import asked_flags
from experiments.engines.simulation import check_simulation, simulated_accept
from experiments.errors import ConfigError
from experiments.gpu import seen_by
from experiments.kernels import check_kernels
from ling_runtime.arguments import parse
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
    keys: ClassVar = ("flags", "tp_size")
    draws: ClassVar = True

    def check(self, cell: CellSpec) -> None:
        for key in ("num_threads", "max_running_requests", "random_seed"):
            if getattr(cell.engine, key) is None:
                raise ConfigError(f"engine.{key}", "null leaves it open; engine=ling needs a number")
        check_replayed(cell)
        path = Path(cell.model.path)
        try:
            config = ModelConfig.from_pretrained(path)
        except ModelConfigError as error:
            raise ConfigError("model.path", str(error)) from error
        check_weights(cell, path)
        tokenizer = Path(cell.model.tokenizer_path or path)
        if not (tokenizer / "tokenizer.json").is_file():
            raise ConfigError("model.tokenizer_path", f"{tokenizer} holds no tokenizer.json")
        speculation.check(cell, config)
        check_ranks(cell, config)
        wanted = (cell.workload.input_len or 0) + cell.workload.output_len
        context = cell.engine.context_length or config.max_position_embeddings
        if wanted > context:
            raise ConfigError("workload", f"input_len + output_len = {wanted} exceeds the context of {context} tokens")
        check_kernels(cell.kernels)
        if not cell.engine.command:
            self.check_flags(cell)

    def check_flags(self, cell: CellSpec) -> None:
        """As the server will read them. Raises ConfigError."""
        own, _ = self._flags(cell, port=1, served_name="-")
        for name in cell.engine.flags:
            if f"--{name}" in own:
                raise ConfigError(f"engine.flags.{name}", "has a key of its own, or is set by this program")
        for name in ling_activation.IDLE & asked_flags(cell).keys():
            raise ConfigError(
                "engine.flags", f"{name}: ling_runtime takes it without effect, so it would prove nothing"
            )
        try:
            parse(self.command(cell, port=1, served_name="-").argv[len(PROGRAM) :], cell.env)
        except ModelConfigError as error:
            raise ConfigError(key_of(str(error), cell), f"the server would refuse its command line: {error}") from error

    def command(self, cell: CellSpec, *, port: int, served_name: str) -> Command:
        flags, further = self._flags(cell, port=port, served_name=served_name)
        line = (*argv(cell, PROGRAM, {**flags, **further}), *kernel_flags(cell), *cell.engine.extra_args)
        return Command(line, {**child_env(cell.engine.threads), **cell.env})

    def _flags(self, cell: CellSpec, *, port: int, served_name: str) -> tuple[dict[str, Value], dict[str, Value]]:
        """Those of keys, and those of `engine.flags`."""
        engine = cell.engine
        flags: dict[str, Value] = {
            "--model-path": cell.model.path,
            "--tokenizer-path": cell.model.tokenizer_path,
            "--load-format": "dummy" if cell.model.weights == "drawn" else None,
            "--host": engine.host,
            "--port": port,
            "--served-model-name": served_name,
            "--dtype": engine.dtype,
            "--device": engine.device,
            "--tp-size": engine.tp_size,
            "--num-threads": engine.num_threads,
            "--max-running-requests": engine.max_running_requests,
            "--context-length": engine.context_length,
            "--random-seed": engine.random_seed,
            **_speculation_flags(cell.speculation),
        }
        return flags, {f"--{name}": value or True for name, value in engine.flags.items()}

    def expected(self, cell: CellSpec) -> dict[str, Any]:
        return ling_activation.expected(cell)

    def observed(self, cell: CellSpec, info: Mapping[str, Any], log: str) -> dict[str, Any]:
        return ling_activation.observed(cell, info)

    def remarks(self, cell: CellSpec, info: Mapping[str, Any], log: str) -> Iterator[str]:
        yield from simulation.remarks(cell)
        if cell.model.weights == "drawn":
            yield "weights are drawn and not trained: times mean something, answers and accept lengths nothing"
        yield from ling_activation.fallbacks(cell.speculation, info)


def check_ranks(cell: CellSpec, config: ModelConfig) -> None:
    """Raises ConfigError where the model cannot be shared by so many, or there are not so many GPUs to be seen."""
    ranks = cell.engine.tp_size or 1
    try:
        config.of_rank(ranks)
    except ModelConfigError as error:
        raise ConfigError("engine.tp_size", str(error)) from error
    if ranks == 1:
        return
    if cell.speculation.algorithm == "dspark":
        raise ConfigError("engine.tp_size", f"{ranks} ranks share no DSPARK draft; allowed: null or 1")
    if cell.engine.device == "cuda":
        seen = seen_by(os.environ | cell.env)
        if seen is not None and seen < ranks:
            where = f"{seen} GPUs can be seen (CUDA_VISIBLE_DEVICES and nvidia-smi)"
            raise ConfigError("engine.tp_size", f"{ranks} ranks have a GPU each, and {where}; allowed: at most {seen}")


def check_weights(cell: CellSpec, path: Path) -> None:
    """Raises ConfigError where there are none, or where those drawn would be asked for answers."""
    drawn = cell.model.weights == "drawn"
    if not (drawn or [*path.glob("*.safetensors")]):
        raise ConfigError(
            "model.path",
            f"{path} holds no *.safetensors; expected a local checkpoint directory, or model.weights=drawn",
        )
    if drawn and cell.task.name != "none":
        raise ConfigError("task", "answers of drawn weights score nothing; allowed: task=none")


def check_replayed(cell: CellSpec) -> None:
    """Raises ConfigError for simulated acceptance where it is not what the server would do."""
    check_simulation(cell)
    if simulated_accept(cell) is None:
        return
    for name in simulation.ALLOWED:
        if name in cell.env:
            raise ConfigError(f"env.{name}", "SGLang's alone; ling_runtime keeps the drafts and the mean")
    if cell.engine.device != "cuda" or "--disable-cuda-graph" in asked_flags(cell):
        why = "ling_runtime simulates acceptance where steps are CUDA graphs alone"
        raise ConfigError(f"env.{simulation.LENGTH}", f"{why}; allowed with engine.device=cuda")


def kernel_flags(cell: CellSpec) -> list[str]:
    return [part for pair in sorted(cell.kernels.items()) for part in ("--kernel", "=".join(pair))]


def key_of(refusal: str, cell: CellSpec) -> str:
    """The key behind the flag that a refusal begins with."""
    flag = re.match(r"(?:argument )?--([\w-]+)", refusal)
    name = flag[1].replace("-", "_") if flag else ""
    drafting = name.removeprefix("speculative_").removeprefix("dspark_")
    if drafting != name and getattr(cell.speculation, drafting, None) is not None:
        return f"speculation.{drafting}"
    return f"engine.{name}" if hasattr(cell.engine, name) else "engine.flags"


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
