"""The rows of one forward pass: up to T new tokens for each of B requests, n in all, and where each row lives.

Every index that layers need is computed here once per pass. The surprise: rows have three layouts. Matrix work sees
them flat, one request's behind another's, and padded to 16-row tiles; what mixes rows of a request sees T of each
(`spread`), those that are missing holding another row's values; KDA sees them on a grid of chunks at absolute
positions, so that a row has one place in its chunk whatever window it came in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from ling_runtime.config import TILE
from ling_runtime.ops.linear import pad_rows, padded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def to_device(values: Sequence[int] | Sequence[list[int]], device: torch.device) -> Tensor:
    """Host integers as a tensor; on a CUDA device without waiting for what is queued there, as a plain copy would."""
    pinned = device.type == "cuda"
    return torch.tensor(values, dtype=torch.int64, pin_memory=pinned).to(device, non_blocking=pinned)


@dataclass(frozen=True, kw_only=True)
class Window:
    """`starts[b]` is the committed length of the request in `slots[b]`: the position of its first new row."""

    slots: tuple[int, ...]
    starts: tuple[int, ...]
    rows: int
    """T, new rows of each request."""
    counts: tuple[int, ...] | None = None
    """New rows of each request where some have fewer, 1..T."""
    prompt: bool = False
    """Rows of one request's prompt, all of which will be accepted."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @cached_property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Each request's first flat row and the one behind its last."""
        ends = tuple(accumulate(self.counts or (self.rows,) * self.batch))
        return tuple(zip((0, *ends), ends, strict=False))

    @property
    def batch(self) -> int:
        return len(self.slots)

    @property
    def real_rows(self) -> int:
        """n"""
        return self.spans[-1][1]

    @property
    def padded_rows(self) -> int:
        return padded(self.real_rows)

    def pad(self, rows: Tensor) -> Tensor:
        """Zero rows behind [n, ...] up to whole tiles."""
        return pad_rows(rows)

    @cached_property
    def slot_index(self) -> Tensor:
        return to_device(self.slots, self.device)

    @cached_property
    def start_index(self) -> Tensor:
        return to_device(self.starts, self.device)

    @cached_property
    def positions(self) -> Tensor:
        """[n] absolute positions of the new rows."""
        return self.pack(self.start_index[:, None] + torch.arange(self.rows, device=self.device))

    def pack(self, spread: Tensor) -> Tensor:
        """[B, T, ...] -> [n, ...], the rows that there are."""
        if self.counts is None:
            return spread.flatten(0, 1)
        return spread.flatten(0, 1).index_select(0, self._packed_from)

    def spread(self, flat: Tensor) -> Tensor:
        """[>= n, ...] -> [B, T, ...]; what stands where there is no row means nothing."""
        if self.counts is None:
            return flat[: self.real_rows].view(self.batch, self.rows, *flat.shape[1:])
        return flat.index_select(0, self._spread_from).view(self.batch, self.rows, *flat.shape[1:])

    @cached_property
    def _packed_from(self) -> Tensor:
        index = [b * self.rows + i for b, (first, end) in enumerate(self.spans) for i in range(end - first)]
        return torch.tensor(index, device=self.device)

    @cached_property
    def _spread_from(self) -> Tensor:
        index = [first + i if first + i < end else first for first, end in self.spans for i in range(self.rows)]
        return torch.tensor(index, device=self.device)

    # KDA's grid ---------------------------------------------------------------------------------------------------

    @property
    def chunks(self) -> int:
        """Chunks from each request's boundary to its last new row, the most of any request."""
        return max(-(-end // TILE) for end in self._grid_ends)

    @property
    def closed_chunks(self) -> int:
        """Chunks that some request can fill completely, if all its rows are accepted."""
        return max(end // TILE for end in self._grid_ends)

    @property
    def _grid_ends(self) -> list[int]:
        return [start % TILE + end - first for start, (first, end) in zip(self.starts, self.spans, strict=True)]

    @property
    def _count(self) -> int | Tensor:
        """New rows of each request, [B, 1] where they differ."""
        return self.rows if self.counts is None else torch.tensor(self.counts, device=self.device)[:, None]

    @cached_property
    def _grid_source(self) -> Tensor:
        """[B * chunks * 16] rows of (ring | window | zero) that fill the grid, flat over requests."""
        place = torch.arange(self.chunks * TILE, device=self.device)
        offset = (self.start_index % TILE)[:, None]
        source = place - offset + TILE
        source = torch.where(place < offset, place, source)
        source = torch.where(place < offset + self._count, source, TILE + self.rows)
        stride = TILE + self.rows + 1
        return (source + torch.arange(self.batch, device=self.device)[:, None] * stride).flatten()

    @cached_property
    def _grid_row(self) -> Tensor:
        """[n] place of each new row on the flat grid."""
        base = torch.arange(self.batch, device=self.device) * self.chunks * TILE + self.start_index % TILE
        return self.pack(base[:, None] + torch.arange(self.rows, device=self.device))

    def to_grid(self, ring: Tensor, packed: Tensor) -> Tensor:
        """ring [B, 16, ...] and new rows [B, T, ...] -> [B, chunks, 16, ...] at absolute places, zeros elsewhere."""
        zero = packed.new_zeros(packed.shape[0], 1, *packed.shape[2:])
        rows = torch.cat([ring, packed, zero], dim=1).flatten(0, 1)
        return rows.index_select(0, self._grid_source).view(self.batch, self.chunks, TILE, *packed.shape[2:])

    def from_grid(self, grid: Tensor) -> Tensor:
        """[B, chunks, 16, ...] -> the new rows [n, ...]."""
        return grid.flatten(0, 2).index_select(0, self._grid_row)
