"""The engines there are, by the name that `engine.name` gives them.

The surprise: the name is checked here and not in the schema, so that an engine is known by one line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.engines.attach import Attach
from experiments.engines.ling import Ling
from experiments.engines.sglang import SGLang
from experiments.engines.sglang_cpu import SGLangCpu
from experiments.engines.vllm import Vllm
from experiments.errors import ConfigError

if TYPE_CHECKING:
    from experiments.engines.interface import Engine
    from experiments.spec import CellSpec

ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        Ling(),
        SGLang(),
        Attach(),
        Vllm(),
        SGLangCpu(),
    )
}


def engine_of(cell: CellSpec) -> Engine:
    """Raises ConfigError for a name that no engine has."""
    name = cell.engine.name
    if name not in ENGINES:
        raise ConfigError("engine.name", f"{name!r} is no engine; allowed: {', '.join(ENGINES)}")
    return ENGINES[name]
