"""SGLang itself: `python -m sglang.launch_server` from the same spec that starts our runtime.

The surprise: the line is kept as short as it can be. What SGLang would choose by itself is not said, so that a preset
can be read beside a command line that somebody published.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from experiments.audit.audit import audit, launch_of
from experiments.command import Command
from experiments.engines import sglang_activation, sglang_checks, sglang_lines
from experiments.engines.command_line import argv
from experiments.engines.interface import LAUNCH_KEYS, Engine
from experiments.engines.sglang_flags import environment, flags
from experiments.engines.sglang_versions import TESTED
from experiments.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from experiments.audit.finding import Finding
    from experiments.spec import Algorithm, CellSpec
    from experiments.workloads import Data

PROGRAM = (sys.executable, "-m", "sglang.launch_server")


class SGLang(Engine):
    name = "sglang"
    algorithms: ClassVar[tuple[Algorithm, ...]] = ("none", "nextn", "dspark", "eagle3", "standalone", "ngram")
    keys: ClassVar[tuple[str, ...]] = (*LAUNCH_KEYS, "gpu")
    hub = True

    def completed(self, cell: CellSpec, asked: CellSpec) -> CellSpec:
        """A block's size and verify mode stand on the command line only where they were asked for."""
        sglang_checks.check_asked(asked)
        block = cell.speculation
        if block.algorithm != "dspark":
            return cell
        assert block.block_size is not None
        said = replace(
            block,
            num_draft_tokens=block.block_size + 1 if asked.speculation.block_size else None,
            verify_mode=asked.speculation.verify_mode,
            scheduler=None,
            allow_fallback=None,
        )
        return replace(cell, speculation=said)

    def check(self, cell: CellSpec) -> None:
        sglang_checks.check(cell)

    def check_installed(self, cell: CellSpec) -> None:
        if not cell.engine.command and importlib.util.find_spec("sglang") is None:
            where = "engine.command=[PYTHON,-m,sglang.launch_server] names another environment"
            raise ConfigError("engine", f"SGLang is not installed here: pip install 'sglang=={TESTED}'; or {where}")

    def command(self, cell: CellSpec, *, port: int, served_name: str) -> Command:
        line = argv(cell, PROGRAM, flags(cell, port, served_name))
        return Command((*line, *cell.engine.extra_args), environment(cell))

    def lines(self, cell: CellSpec, url: str, data: Data) -> dict[str, Command]:
        return sglang_lines.lines(cell, url, data)

    def audit(self, cell: CellSpec) -> tuple[Finding, ...]:
        command = self.command(cell, port=0, served_name=cell.model.name)
        return audit(launch_of(command, cell.engine.gpu))

    def expected(self, cell: CellSpec) -> dict[str, Any]:
        return sglang_activation.expected(cell)

    def observed(self, cell: CellSpec, info: Mapping[str, Any], log: str) -> dict[str, Any]:
        return sglang_activation.observed(cell, info, log)

    def remarks(self, cell: CellSpec, info: Mapping[str, Any], log: str) -> Iterator[str]:
        return sglang_activation.remarks(cell, info, log)
