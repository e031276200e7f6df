"""The rows of one forward pass: T new tokens for each of B requests, and where each row lives.

Every index that layers need is computed here once per pass. The surprise: rows have two layouts. Matrix work sees them
flat and padded to 16-row tiles; KDA sees them on a grid of chunks at absolute positions, so that a row has one place in
its chunk whatever window it came in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from ling_runtime.config import TILE
from ling_runtime.ops.linear import padded

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Window:
    """`starts[b]` is the committed length of the request in `slots[b]`: the position of its first new row."""

    slots: tuple[int, ...]
    starts: tuple[int, ...]
    rows: int
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def batch(self) -> int:
        return len(self.slots)

    @property
    def real_rows(self) -> int:
        return self.batch * self.rows

    @property
    def padded_rows(self) -> int:
        return padded(self.real_rows)

    @cached_property
    def slot_index(self) -> Tensor:
        return torch.tensor(self.slots, device=self.device)

    @cached_property
    def start_index(self) -> Tensor:
        return torch.tensor(self.starts, device=self.device)

    @cached_property
    def positions(self) -> Tensor:
        """[B, T] absolute positions of the new rows."""
        return self.start_index[:, None] + torch.arange(self.rows, device=self.device)

    # KDA's grid ---------------------------------------------------------------------------------------------------

    @property
    def chunks(self) -> int:
        """Chunks from each request's boundary to its last new row, the most of any request."""
        return max(-(-(start % TILE + self.rows) // TILE) for start in self.starts)

    @property
    def closed_chunks(self) -> int:
        """Chunks that some request can fill completely, if all its rows are accepted."""
        return max((start % TILE + self.rows) // TILE for start in self.starts)

    @cached_property
    def _grid_source(self) -> Tensor:
        """[B * chunks * 16] rows of (ring | window | zero) that fill the grid, flat over requests."""
        place = torch.arange(self.chunks * TILE, device=self.device)
        offset = (self.start_index % TILE)[:, None]
        source = place - offset + TILE
        source = torch.where(place < offset, place, source)
        source = torch.where(place < offset + self.rows, source, TILE + self.rows)
        stride = TILE + self.rows + 1
        return (source + torch.arange(self.batch, device=self.device)[:, None] * stride).flatten()

    @cached_property
    def _grid_row(self) -> Tensor:
        """[B * T] place of each new row on the flat grid."""
        base = torch.arange(self.batch, device=self.device) * self.chunks * TILE + self.start_index % TILE
        return (base[:, None] + torch.arange(self.rows, device=self.device)).flatten()

    def to_grid(self, ring: Tensor, packed: Tensor) -> Tensor:
        """ring [B, 16, ...] and new rows [B, T, ...] -> [B, chunks, 16, ...] at absolute places, zeros elsewhere."""
        zero = packed.new_zeros(packed.shape[0], 1, *packed.shape[2:])
        rows = torch.cat([ring, packed, zero], dim=1).flatten(0, 1)
        return rows.index_select(0, self._grid_source).view(self.batch, self.chunks, TILE, *packed.shape[2:])

    def from_grid(self, grid: Tensor) -> Tensor:
        """[B, chunks, 16, ...] -> the new rows, flat [B * T, ...]."""
        return grid.flatten(0, 2).index_select(0, self._grid_row)
