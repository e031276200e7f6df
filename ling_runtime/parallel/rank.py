"""One rank's executor, and its word for what it did: every rank must have done the same.

The surprise: nobody sends tokens. Each rank finds them for itself from equal logits, so a rank that went its own way
would spoil the others' sums without an error. Therefore each keeps a digest of the tokens it found.
"""

from __future__ import annotations

import os
import zlib
from typing import TYPE_CHECKING, Any

from ling_runtime.executor.interface import PrefillOutput, StepOutput

if TYPE_CHECKING:
    from ling_runtime.executor.step import StepExecutor
    from ling_runtime.parallel.communicator import Communicator


class Rank:
    """`call` runs a method of the executor; `report` is what may be compared."""

    def __init__(self, executor: StepExecutor, ranks: Communicator, device: str) -> None:
        self.executor = executor
        self._about = {"rank": ranks.rank, "size": ranks.size, "pid": os.getpid(), "device": device}
        self._calls = self._digest = 0

    def call(self, name: str, *args: Any) -> Any:
        result = getattr(self.executor, name)(*args)
        self._calls += 1
        if isinstance(result, PrefillOutput):
            self._note(result.token)
        elif name == "decode":
            self._note({slot: out.tokens for slot, out in result.items() if isinstance(out, StepOutput)})
        return result

    def report(self) -> dict[str, Any]:
        """`calls` and `digest` (of all tokens since the start) are equal on all ranks at the same call."""
        return self._about | {"calls": self._calls, "digest": f"{self._digest:08x}"}

    def _note(self, tokens: object) -> None:
        self._digest = zlib.crc32(repr(tokens).encode(), self._digest)
