"""Parts of a step that are made of others: two in one graph, one that is never recorded, a refill before either.

They let the switches of a step (`switches.Switches`) rearrange it without the parts knowing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ling_runtime.executor.graphs import Recorded
from ling_runtime.ops.triton.ring import keep

if TYPE_CHECKING:
    from ling_runtime.executor.glue import Glue
    from ling_runtime.executor.graph_memory import GraphMemory
    from ling_runtime.executor.graphs import VerifyStep
    from ling_runtime.executor.relay import Ring


class Fused(Recorded):
    """Parts one after the other as one recording."""

    def __init__(self, *parts: Recorded) -> None:
        self._parts = parts

    @property
    def name(self) -> str:
        return " + ".join(part.name for part in self._parts)

    def run(self) -> None:
        for part in self._parts:
            part.run()


class Unrecorded(Recorded):
    """A part that is launched kernel by kernel every time."""

    def __init__(self, part: Recorded) -> None:
        self._part = part

    def run(self) -> None:
        self._part.run()

    def step(self, memory: GraphMemory) -> int:  # noqa: ARG002 - there is nothing to hold
        self.run()
        return 1


class KeepStep(Recorded):
    """What `verify` found, into the ring that the host reads."""

    def __init__(self, verify: VerifyStep, ring: Ring) -> None:
        self._verify, self._ring = verify, ring

    def run(self) -> None:
        keep(*self._verify.results, self._ring.slots, self._ring.turn)


class RefillStep(Recorded):
    """What `verify` looks up by slot, by a chain of tensor operations before the step: `glue` None, one by one."""

    def __init__(self, verify: VerifyStep, purpose: str, glue: Glue | None) -> None:
        self._verify, self._glue = verify, glue
        self._key = (len(verify.slots), purpose)

    @torch.inference_mode()
    def run(self) -> None:
        self._verify.look_up_by_operations()

    def step(self, memory: GraphMemory) -> int:  # noqa: ARG002 - the glue has it
        if self._glue is None:
            self.run()
        else:
            self._glue.run(self._key, self.run)
        return 1
