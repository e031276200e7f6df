"""What drawn weights weigh, from config.json's shapes alone, and whether this machine can hold them.

A directory without weights looks small and is not: on a CPU, the kernel would end the server while it draws. The
surprise: ranks on a CPU share one memory, so what `tp_size` divides there comes together again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil

from experiments.errors import ConfigError
from ling_runtime.config import ModelConfig
from ling_runtime.draft_config import DraftConfig
from ling_runtime.draft_table import draft_tensor_specs
from ling_runtime.tensor_table import held_bytes, tensor_specs

if TYPE_CHECKING:
    from experiments.spec import CellSpec, StudySpec

GIB = 2**30


def rank_bytes(cell: CellSpec) -> int:
    """What each rank of a checked cell draws and keeps: the model's part, and the draft."""
    speculation, wide = cell.speculation, cell.engine.dtype == "float32"
    specs = tensor_specs(ModelConfig.from_pretrained(cell.model.path), nextn=speculation.algorithm == "nextn")
    held = held_bytes(specs, wide=wide, ranks=cell.engine.tp_size or 1)
    if speculation.draft_path is None:
        return held
    draft = draft_tensor_specs(DraftConfig.from_pretrained(speculation.draft_path), confidence=False)
    return held + held_bytes(draft, wide=wide)


def machine_bytes(cell: CellSpec) -> int:
    """What all ranks draw into this machine's own memory: nothing where each has a device for it."""
    return rank_bytes(cell) * (cell.engine.tp_size or 1) if cell.engine.device == "cpu" else 0


def available_bytes() -> int:
    return int(psutil.virtual_memory().available)


def check_memory(cell: CellSpec, study: StudySpec) -> None:
    """Raises ConfigError for weights that would not fit here; where nothing is started here, they need not."""
    if cell.model.weights != "drawn" or study.dry_run or study.preflight or study.launcher.name == "slurm":
        return
    size, available = machine_bytes(cell), available_bytes()
    if size > available:
        here = f"{size / GIB:.1f} GiB of {cell.engine.dtype} where {available / GIB:.1f} GiB are available"
        problem = f"drawn on engine.device=cpu they are {here}; allowed: engine.device=cuda, or a model that fits"
        raise ConfigError("model.weights", problem)
