"""SGLang itself on a CPU, from an environment of its own: the real server where there is no GPU, for development.

The surprise: nothing of what a CPU needs is fixed here. Those flags are values of conf/engine/sglang_cpu.yaml, where
they can be read and overridden; this file knows only where the server lives and that it must not see our packages.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from experiments.child import ROOT, child_env
from experiments.command import Command
from experiments.engines.command_line import argv
from experiments.engines.sglang import SGLang
from experiments.engines.sglang_flags import environment, flags
from experiments.errors import ConfigError

if TYPE_CHECKING:
    from experiments.spec import CellSpec

PYTHON = "LING_SGLANG_CPU_PYTHON"
"""Environment name: the Python of another environment than the one that `make sglang-cpu` makes."""

PLATFORM = "small_cpu"
"""Entry point of plugins/sglang_cpu."""


class SGLangCpu(SGLang):
    name = "sglang_cpu"
    algorithms: ClassVar = ("none",)
    keys: ClassVar = ("trust_remote_code", "mem_fraction_static", "attention_backend", "flags")
    hub = False

    def check(self, cell: CellSpec) -> None:
        if cell.engine.device != "cpu":
            raise ConfigError("engine.device", f"{cell.engine.device!r} is not what this engine runs on; allowed: cpu")
        check_files(Path(cell.model.path), Path(cell.model.tokenizer_path or cell.model.path))
        super().check(cell)

    def check_installed(self, cell: CellSpec) -> None:
        if not cell.engine.command and not python().is_file():
            why = f"{python()} is missing; `make sglang-cpu` makes it, or {PYTHON} names the Python of another such one"
            raise ConfigError("engine", why)

    def command(self, cell: CellSpec, *, port: int, served_name: str) -> Command:
        program = (str(python()), "-m", "sglang.launch_server")
        line = argv(cell, program, flags(cell, port, served_name))
        own = {**child_env(cell.engine.threads), "PYTHONPATH": "", "SGLANG_PLATFORM": PLATFORM}
        return Command((*line, *cell.engine.extra_args), {**own, **environment(cell)})


def python() -> Path:
    return Path(os.environ.get(PYTHON) or ROOT / ".venv-sglang-cpu/bin/python")


def check_files(model: Path, tokenizer: Path) -> None:
    """Raises ConfigError."""
    if not (model / "config.json").is_file() or not [*model.glob("*.safetensors")]:
        why = (
            f"{model} is no checkpoint (config.json, *.safetensors); `make sglang-cpu` makes that of model=small_llama"
        )
        raise ConfigError("model.path", why)
    if not (tokenizer / "tokenizer.json").is_file():
        raise ConfigError("model.tokenizer_path", f"{tokenizer} holds no tokenizer.json")
