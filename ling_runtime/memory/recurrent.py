"""Recurrent and convolution state of every request slot, changed only by commit.

A pass reads the committed state and stages; `commit` takes the accepted prefix. The surprise: nothing is rolled back,
because nothing was written. What lies past the accepted prefix is masked to zero, so two rejected tails leave equal
bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from ling_runtime.config import TILE, ModelConfig
from ling_runtime.ops.kda import KdaEnd, KdaStaged, KdaState

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.memory.window import Window


@dataclass(frozen=True)
class Pools:
    """The tensors of a pool, for kernels that find a request by its slot."""

    conv: Tensor  # [layers, slots, kernel - 1, C]
    ring: Tensor  # [layers, slots, 16, H, 4 d + 1]
    state: Tensor  # [layers, slots, H, d, d]
    lead: Tensor  # [layers, slots, H, d, d] values by keys: the state at position `walked`, for captured steps
    walked: Tensor  # [slots], -1 where the state at the chunk boundary is the only one


class RecurrentPool:
    """State of `slots` requests (slot 0 is for padding) over all KDA layers of one model."""

    def __init__(self, config: ModelConfig, slots: int, *, dtype: torch.dtype, device: torch.device) -> None:
        layers, heads, width = len(config.layers(mla=False)), config.num_attention_heads, config.head_dim
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        taps = config.short_conv_kernel_size
        self._conv = torch.zeros(layers, slots, taps - 1, 3 * heads * width, dtype=dtype, device=device)
        self._ring = torch.zeros(layers, slots, TILE, heads, 4 * width + 1, dtype=wide, device=device)
        self._state = torch.zeros(layers, slots, heads, width, width, dtype=wide, device=device)
        self._walked = torch.full((slots,), -1, device=device)
        self._staged: list[KdaStaged | KdaEnd] = []

    @cached_property
    def pools(self) -> Pools:
        return Pools(self._conv, self._ring, self._state, torch.zeros_like(self._state), self._walked)

    def read(self, layer: int, window: Window) -> KdaState:
        """Committed state of the window's requests in KDA layer `layer` (counted among KDA layers), read only."""
        pools = (self._conv[layer], self._ring[layer], self._state[layer])
        if window.batch == 1:
            conv, ring, state = (pool.narrow(0, window.slots[0], 1) for pool in pools)
        else:
            conv, ring, state = (pool.index_select(0, window.slot_index) for pool in pools)
        return KdaState(conv, ring, state)

    def stage(self, layer: int, staged: KdaStaged | KdaEnd) -> None:
        assert layer == len(self._staged), "layers stage in order, once per pass"
        self._staged.append(staged)

    def commit(self, window: Window, accepted: Tensor) -> None:
        """Advance each request by accepted [B] >= 1 rows of the staged window."""
        staged, self._staged = self._staged, []
        ends = [s for s in staged if isinstance(s, KdaEnd)]
        if ends:
            self._settle(window, ends)
        else:
            self._advance(window, accepted, [s for s in staged if isinstance(s, KdaStaged)])
        self._walked[window.slot_index] = -1

    def _settle(self, window: Window, ends: list[KdaEnd]) -> None:
        """Take all rows of a prompt, of which layers staged the end alone."""
        index = window.slot_index
        self._conv[:, index] = torch.stack([end.conv for end in ends])
        self._ring[:, index] = torch.stack([end.ring for end in ends])
        self._state[:, index] = torch.stack([end.state for end in ends])

    def _advance(self, window: Window, accepted: Tensor, staged: list[KdaStaged]) -> None:
        batch, index = torch.arange(window.batch, device=accepted.device), window.slot_index
        conv = torch.stack([s.conv for s in staged])
        taps = self._conv.shape[2]
        kept = accepted[:, None] + torch.arange(taps, device=accepted.device)
        self._conv[:, index] = conv[:, batch[:, None], kept]
        length = window.start_index % TILE + accepted
        boundary = length // TILE
        self._state[:, index] = torch.stack([s.states for s in staged])[:, batch, boundary]
        grid = torch.stack([s.grid for s in staged])
        open_chunk = grid[:, batch, boundary.clamp(max=window.chunks - 1)]
        alive = torch.arange(TILE, device=accepted.device) < (length - boundary * TILE)[:, None]
        self._ring[:, index] = torch.where(alive[:, :, None, None], open_chunk, 0)

    def discard(self) -> None:
        """Forget a staged window (a pass that is not committed)."""
        self._staged = []

    def clear(self, slot: int) -> None:
        """A new request starts from zeros; whatever the last one left must not reach it."""
        for pool in (self._conv, self._ring, self._state):
            pool[:, slot] = 0
        self._walked[slot] = -1

    def snapshot(self, slot: int) -> tuple[Tensor, Tensor, Tensor]:
        """Copies of (conv, ring, state) of one slot, for tests and reports."""
        return self._conv[:, slot].clone(), self._ring[:, slot].clone(), self._state[:, slot].clone()
