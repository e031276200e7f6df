"""How every row of a lockstep batch takes its next token: greedily, or sampled under settings of its own.

Noise is the server's hash of (seed, position, token id), so what a row says depends neither on the rows beside it nor
on the device's random state; and being plain arithmetic, it can be captured in a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ling_runtime.speculation.noise import uniform
from ling_runtime.speculation.sampling import sample

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Temperature 0 is greedy; top_p 1 and top_k 0 are off."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Settings of B rows; `filtered` and `sampled` say whether any row needs the work at all."""

    temperature: Tensor  # [B, 1], as the next two
    top_p: Tensor
    top_k: Tensor
    seeds: Tensor  # [B]
    sampled: bool
    filtered: bool

    @classmethod
    def of(cls, rows: Sequence[Sampling], seeds: Sequence[int], device: torch.device) -> Choice:
        def column(values: Sequence[float], dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)[:, None]

        return cls(
            temperature=column([row.temperature for row in rows], torch.float32),
            top_p=column([row.top_p for row in rows], torch.float32),
            top_k=column([row.top_k or torch.iinfo(torch.int64).max for row in rows], torch.int64),
            seeds=torch.tensor(seeds, device=device),
            sampled=any(row.temperature > 0 for row in rows),
            filtered=any(row.temperature > 0 and (row.top_p < 1 or row.top_k > 0) for row in rows),
        )

    def __call__(self, logits: Tensor, position: Tensor) -> Tensor:
        """Tokens [B, 1] for the given position [1], from logits [B, V]."""
        best = logits.argmax(-1, keepdim=True)
        if not self.sampled:
            return best
        log_p = (logits / self.temperature.clamp(min=1e-5)).log_softmax(-1)
        if self.filtered:
            log_p = self._filter(log_p)
        noise = uniform(self.seeds, position.expand_as(self.seeds), logits.shape[-1])
        return torch.where(self.temperature > 0, sample(log_p, noise)[:, None], best)

    def _filter(self, log_p: Tensor) -> Tensor:
        """-inf past each row's top_k and top_p, both measured on the whole distribution; the best token stays."""
        ordered, ids = log_p.sort(dim=-1, descending=True, stable=True)
        p, place = ordered.exp(), torch.arange(log_p.shape[-1], device=log_p.device)
        dropped = (p.cumsum(-1) - p > self.top_p) | (place >= self.top_k)
        dropped[:, 0] = False
        return torch.empty_like(log_p).scatter_(-1, ids, ordered.masked_fill(dropped, -torch.inf))
