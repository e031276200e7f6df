"""A window whose lengths live on the device: what a captured step is made of.

Everything the host decides is a shape (requests, rows, the most pages a request may have); everything that changes from
step to step (slots, lengths, page tables) is read by kernels from persistent tensors. So one recorded step serves every
request at every length, and the host never has to know how long a context is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ling_runtime.config import TILE
from ling_runtime.ops.kda import KdaStaged, KdaState
from ling_runtime.ops.linear import padded

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.memory.recurrent import Pools


@dataclass(frozen=True, kw_only=True)
class DeviceWindow:
    """`rows` new rows for each of `batch` requests; the counterpart of `Window` for operators that read the device."""

    batch: int
    rows: int
    slot_index: Tensor  # [B]
    start_index: Tensor  # [B] committed lengths
    counts: None = None  # every request has `rows`
    prompt: bool = False

    @property
    def real_rows(self) -> int:
        return self.batch * self.rows

    @property
    def padded_rows(self) -> int:
        return padded(self.real_rows)

    def pad(self, rows: Tensor) -> Tensor:
        """As it is: device operators fill their tiles themselves and read no row that is not there."""
        return rows

    @property
    def chunks(self) -> int:
        """The most chunks a window can touch, wherever it starts."""
        return -(-(TILE - 1 + self.rows) // TILE)

    @property
    def closed_chunks(self) -> int:
        """The most chunks a window can fill."""
        return (TILE - 1 + self.rows) // TILE


@dataclass(frozen=True)
class DeviceLatent:
    """One layer's cache for kernels: all its rows, and the page table of each request."""

    rows: Tensor  # [pages, PAGE, width]
    window: DeviceWindow
    table: Tensor  # [B, most pages]


class DeviceRecurrent:
    """The state pools with staging that stays in place, for windows of one shape."""

    def __init__(self, pools: Pools, batch: int, rows: int) -> None:
        layers, _, taps, channels = pools.conv.shape
        heads, width = pools.state.shape[2:4]
        chunks, closed = -(-(TILE - 1 + rows) // TILE), (TILE - 1 + rows) // TILE
        self.pools, self.walked = pools, pools.walked.new_full((batch,), -1)
        self.staged = KdaStaged(
            pools.conv.new_zeros(layers, batch, taps + rows, channels),
            pools.ring.new_zeros(layers, batch, chunks, TILE, heads, 4 * width + 1),
            pools.state.new_zeros(layers, batch, closed + 1, heads, width, width),
        )

    def read(self, layer: int, window: DeviceWindow) -> KdaState:
        """Whole pools of `layer` with the window's slots, and where to stage."""
        pools, staged = self.pools, self.staged
        place = KdaStaged(staged.conv[layer], staged.grid[layer], staged.states[layer])
        lead = (pools.lead[layer], self.walked)
        return KdaState(pools.conv[layer], pools.ring[layer], pools.state[layer], window.slot_index, place, lead)

    def stage(self, layer: int, staged: KdaStaged) -> None:
        assert staged.conv.data_ptr() == self.staged.conv[layer].data_ptr(), "operators stage in place"


@dataclass(frozen=True)
class DevicePass:
    """What layers see, as `caches.Pass`, in a step that a graph can hold."""

    window: DeviceWindow
    recurrent: DeviceRecurrent
    latent: Tensor  # [layers, pages, PAGE, width]
    table: Tensor  # [B, most pages]

    def latent_view(self, layer: int) -> DeviceLatent:
        return DeviceLatent(self.latent[layer], self.window, self.table)


def page_table(pages: list[int], longest: int, device: torch.device) -> Tensor:
    """[longest] page numbers, 0 past the request's own."""
    return torch.tensor(pages + [0] * (longest - len(pages)), device=device)
