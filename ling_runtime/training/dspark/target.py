"""The target's half: sequences in, the states that a draft is trained on out, computed by the runtime itself.

Whole rows from position 0, in batches, with nothing kept from one batch to the next: recurrent states are staged and
never committed, latents are never cached. Only the attention over latents is another one than in serving. There, a
row's bits may not depend on its window, at the price of a launch per 16 rows; here one call does whole rows, and
rounding is the only difference.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F

from ling_runtime.memory.caches import Caches
from ling_runtime.memory.window import Window
from ling_runtime.model.ling import Ling
from ling_runtime.ops.activation import sigmoid
from ling_runtime.ops.linear import pad_rows
from ling_runtime.ops.norm import rms_norm, widen
from ling_runtime.ops.registry import Kernels, Variant
from ling_runtime.ops.rope import rotate
from ling_runtime.training.dspark.batch import Batch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from ling_runtime.config import ModelConfig
    from ling_runtime.memory.latent import LatentView
    from ling_runtime.ops.mla import MlaWeights
    from ling_runtime.training.dspark.trajectories import Rows

PASS_TOKENS = 65536
"""Tokens of one forward pass: what a pass stages for the recurrent state is some 30 KB a token on the miniature."""


def whole_rows(projected: Tensor, cache: LatentView, weights: MlaWeights) -> Tensor:
    """`mla_window` for windows that start at position 0: all rows at once, the cache neither read nor written."""
    window = cache.window
    assert not any(window.starts), "whole rows have nothing before them"
    heads, nope, rank = weights.key_up.shape
    rope_width = 2 * weights.rope.shape[-1]
    rows = projected[: window.real_rows].view(window.batch, window.rows, -1)
    query, latent, key_rope, gate = rows.split_with_sizes([heads * (nope + rope_width), rank, rope_width, heads], -1)
    table = weights.rope[: window.rows]
    query = query.unflatten(-1, (heads, -1)).transpose(1, 2)
    absorbed = query[..., :nope] @ weights.key_up
    latent = rms_norm(latent, weights.kv_norm, weights.eps)
    keys = torch.cat([latent, rotate(key_rope.contiguous(), table)], -1)[:, None]
    queries = torch.cat([absorbed, rotate(query[..., nope:].contiguous(), table)], -1)
    context = F.scaled_dot_product_attention(
        queries,
        keys.expand(-1, heads, -1, -1),
        latent[:, None].expand(-1, heads, -1, -1),
        is_causal=True,
        scale=weights.scale,
    )
    out = (context @ weights.value_up).transpose(1, 2)
    opened = sigmoid(widen(gate)).to(out.dtype).unsqueeze(-1)
    return pad_rows((out * opened).flatten(2).flatten(0, 1))


WHOLE_ROWS = Variant("mla_window", "whole_rows", "rounding", "sums over keys run in another order", whole_rows)


@dataclass
class Target:
    """A frozen target on one device, which captures the residual stream after each of `layers`.

    `longest` bounds the tokens of a row; `kept` is the precision in which states are handed on.
    """

    config: ModelConfig
    tensors: Mapping[str, Tensor]
    layers: Sequence[int]
    longest: int
    device: torch.device
    dtype: torch.dtype = torch.float32
    kept: torch.dtype = torch.float32
    _caches: dict[int, Caches] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kernels = Kernels()
        self.kernels.use(WHOLE_ROWS)
        self._model = Ling(
            self.config, self.tensors, self.kernels, positions=self.longest, dtype=self.dtype, device=self.device
        )

    @torch.no_grad()
    def __call__(self, rows: Rows) -> Batch:
        """States of every token of `rows`; not under inference mode, because a trainer saves them for its gradients."""
        ids = torch.from_numpy(rows.ids.astype(np.int64)).to(self.device)
        mask = torch.from_numpy(rows.loss_mask).to(self.device)
        parts = [self._forward(part) for part in ids.split(max(PASS_TOKENS // rows.length, 1))]
        hidden, final = (torch.cat(states) for states in zip(*parts, strict=True))
        return Batch(ids, mask, hidden, final)

    def _forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """(captured states side by side, states after the final norm) of ids [B, T]."""
        batch, length = ids.shape
        caches = self._slots(batch)
        window = Window(slots=tuple(range(1, batch + 1)), starts=(0,) * batch, rows=length, device=self.device)
        rows = self._model.rows(ids.flatten(), caches.begin(window), self.layers)
        caches.recurrent.discard()
        final, *captured = (
            states[: window.real_rows].view(batch, length, -1).to(self.kept) for states in (rows.hidden, *rows.captured)
        )
        return torch.cat(captured, -1), final

    def _slots(self, batch: int) -> Caches:
        """Slots of `batch` requests, empty for ever since nothing is committed to them."""
        if batch not in self._caches:
            caches = Caches(self.config, max_requests=batch, pages=batch, dtype=self.dtype, device=self.device)
            for _ in range(batch):
                caches.reserve(1)
            self._caches[batch] = caches
        return self._caches[batch]
