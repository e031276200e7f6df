"""A proposer whose drafts are as right as the test wants them, over a real one that still sees every row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ling_runtime.speculation.interface import Proposal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from ling_runtime.executor.interface import RowSampling
    from ling_runtime.executor.step import StepExecutor
    from ling_runtime.memory.caches import Pass
    from ling_runtime.memory.window import Window
    from ling_runtime.model.ling import TargetRows
    from ling_runtime.speculation.interface import Proposer


@dataclass
class Oracle:
    """Drafts the next tokens of `truth[slot]` (prompt and output), the first `right` of each block unspoilt."""

    real: Proposer
    truth: Mapping[int, Sequence[int]]
    right: int

    def __post_init__(self) -> None:
        self.steps, self.capture = self.real.steps, self.real.capture

    def propose(self, window: Window, anchors: Tensor, sampling: Sequence[RowSampling]) -> Proposal:
        real = self.real.propose(window, anchors, sampling)
        drafts = []
        for slot, start in zip(window.slots, window.starts, strict=True):
            known = list(self.truth[slot][start + 1 : start + 1 + self.steps])
            known += [0] * (self.steps - len(known))
            drafts.append(known[: self.right] + [(token + 1) % 90 for token in known[self.right :]])
        return Proposal(drafts=torch.tensor(drafts), confidence=real.confidence)

    def extend(self, pass_: Pass, following: Tensor, rows: TargetRows, accepted: Tensor) -> None:
        self.real.extend(pass_, following, rows, accepted)


def plant(executor: StepExecutor, truth: Mapping[int, Sequence[int]], right: int) -> None:
    assert executor._proposer is not None
    executor._proposer = Oracle(executor._proposer, truth, right)
