"""SGLang itself: `python -m sglang.launch_server` from the same spec that starts our runtime.

The surprise: the line is kept as short as it can be. What SGLang would choose by itself is not said, so that a preset
can be read beside a command line that somebody published.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, ClassVar

from experiments.command import Command
from experiments.engines import sglang_activation
from experiments.engines.command_line import argv
from experiments.engines.interface import LAUNCH_KEYS, Engine
from experiments.engines.sglang_flags import environment, flags

if TYPE_CHECKING:
    from collections.abc import Mapping

    from experiments.spec import CellSpec

PROGRAM = (sys.executable, "-m", "sglang.launch_server")


class SGLang(Engine):
    name = "sglang"
    algorithms: ClassVar = ("none", "nextn", "dspark", "eagle3", "standalone", "ngram")
    keys: ClassVar = (*LAUNCH_KEYS, "gpu")
    hub = True

    def check(self, cell: CellSpec) -> None:
        pass

    def command(self, cell: CellSpec, *, port: int, served_name: str) -> Command:
        line = argv(cell, PROGRAM, flags(cell, port, served_name))
        return Command((*line, *cell.engine.extra_args), environment(cell))

    def expected(self, cell: CellSpec) -> dict[str, Any]:
        return sglang_activation.expected(cell)

    def observed(self, cell: CellSpec, info: Mapping[str, Any], log: str) -> dict[str, Any]:
        return sglang_activation.observed(cell, info, log)
