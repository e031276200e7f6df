"""A second branch of a captured step, on which weights are fetched while the first computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ling_runtime.ops.triton_fetch import fetch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class Ahead:
    """Forks from the current stream at each call; `join` brings the branch back before the step ends."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()

    def __call__(self, weights: Sequence[Tensor]) -> None:
        """Start fetching `weights` from here on."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for weight in weights:
                fetch(weight)

    def join(self) -> None:
        torch.cuda.current_stream().wait_stream(self._stream)
