"""vLLM: `python -m vllm.entrypoints.openai.api_server` from the same spec, asked through OpenAI's completions API.

The surprise: no speculation. vLLM tells how many drafts it verified and not how many steps a request took, and without
those accept length and step time would be guesses (docs/engines.md).
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from experiments.child import child_env
from experiments.clients.openai import OpenAIClient
from experiments.command import Command
from experiments.engines.command_line import argv
from experiments.engines.interface import Engine
from experiments.errors import ConfigError
from experiments.ports import HOST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from experiments.engines.command_line import Value
    from experiments.spec import CellSpec

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
VERSION_OF = "from importlib.metadata import distributions as d; print(*(x.version for x in d() if x.name in %r))"
PACKAGES = ("vllm", "vllm-cpu")


class Vllm(Engine):
    name = "vllm"
    backend = "vllm"
    algorithms: ClassVar = ("none",)
    keys = (
        *("trust_remote_code", "tp_size", "dp_size", "mem_fraction_static", "attention_backend"),
        *("quantization", "kv_cache_dtype", "flags"),
    )

    def completed(self, cell: CellSpec, asked: CellSpec) -> CellSpec:
        """The version belongs to what is measured, and is nothing that anybody configures."""
        version = installed(cell.engine.command or PROGRAM)
        return replace(cell, engine=replace(cell.engine, reported={"version": version}))

    def check(self, cell: CellSpec) -> None:
        path = Path(cell.model.path)
        if not (path / "config.json").is_file():
            raise ConfigError("model.path", f"{path} holds no config.json; expected a local checkpoint directory")
        tokenizer = Path(cell.model.tokenizer_path or path)
        if not (tokenizer / "tokenizer.json").is_file():
            raise ConfigError("model.tokenizer_path", f"{tokenizer} holds no tokenizer.json")
        for name in (*cell.engine.flags, *(part.lstrip("-") for part in cell.engine.extra_args)):
            if CACHING.match(name):
                why = "is off, and stays so: vLLM empties its prefix cache only in development mode"
                raise ConfigError(f"engine.flags.{name}", why)
        if cell.kernels:
            raise ConfigError(
                f"kernels.{next(iter(cell.kernels))}", "are variants of our runtime; engine=vllm has none"
            )

    def command(self, cell: CellSpec, *, port: int, served_name: str) -> Command:
        engine = cell.engine
        flags: dict[str, Value] = {
            "--model": cell.model.path,
            "--tokenizer": cell.model.tokenizer_path,
            "--revision": cell.model.revision,
            **{flag: getattr(engine, key) for key, flag in FLAGS.items()},
            "--no-enable-prefix-caching": True,
            "--generation-config": "vllm",
            "--disable-uvicorn-access-log": True,
            **{f"--{name}": value or True for name, value in engine.flags.items()},
            "--host": HOST,
            "--port": port,
            "--served-model-name": served_name,
        }
        own = {**child_env(engine.threads), **QUIET, **(ON_CPU if engine.device == "cpu" else {})}
        return Command((*argv(cell, PROGRAM, flags), *engine.extra_args), {**own, **cell.env})

    def client(self, cell: CellSpec, url: str, *, timeout_s: float = 600.0) -> OpenAIClient:
        return OpenAIClient(url, timeout_s)
