"""Trajectories with the target's states beside them, computed once and kept on the device.

For many short trainings of small drafts on one GPU: each reads the same rows at the speed of memory. A long training of
a large draft has no room for this and streams states from running targets instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ling_runtime.training import dense
from ling_runtime.training.dspark.batch import Batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ling_runtime.config import ModelConfig
    from ling_runtime.training.dspark.trajectories import Rows
    from ling_runtime.training.layers import Params


@torch.no_grad()
def with_states(params: Params, config: ModelConfig, rows: Rows, layers: Sequence[int], tokens: int = 65536) -> Batch:
    """All rows and their states, on the parameters' device, in bf16 on a GPU; `tokens` at a time."""
    device = params["lm_head.weight"].device
    kept = torch.bfloat16 if device.type == "cuda" else torch.float32
    ids = torch.from_numpy(rows.ids).to(device).long()
    hidden, final = [], []
    for part in ids.split(max(tokens // rows.length, 1)):
        trunk = dense.forward(params, config, part, capture=layers)
        hidden.append(torch.cat(trunk.captured, -1).to(kept))
        final.append(trunk.hidden.to(kept))
    return Batch(ids, torch.from_numpy(rows.loss_mask).to(device), torch.cat(hidden), torch.cat(final))


@dataclass(frozen=True)
class Corpus:
    """Rows to draw batches from; every `long_every`-th batch is of long rows, where there are any, half as many."""

    rows: Batch
    long: Batch | None = None
    long_every: int = 8

    def batch(self, index: int, *, rows: int, seed: int) -> Batch:
        """Batch `index` of an endless stream, a function of seed and index."""
        source = self.rows
        if self.long is not None and index % self.long_every == self.long_every - 1:
            source, rows = self.long, max(rows // 2, 1)
        generator = torch.Generator().manual_seed(seed * 1_000_003 + index)
        drawn = torch.randint(len(source.ids), (rows,), generator=generator).to(source.ids.device)
        return Batch(*(value[drawn] for value in source))


def parts(batch: Batch, rows: int) -> Iterator[Batch]:
    """The batch, `rows` sequences at a time."""
    return (Batch(*part) for part in zip(*(value.split(rows) for value in batch), strict=True))
