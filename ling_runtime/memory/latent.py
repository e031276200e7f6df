"""The paged cache of MLA latents: one row per token and layer, found through each request's page table.

Rows past the committed length are garbage by design and are overwritten by the next window. Page 0 belongs to nobody,
so that padded rows have somewhere harmless to point.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from ling_runtime.memory.window import to_device

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.memory.window import Window

PAGE = 64
"""Tokens per page, and keys per split of the attention sum."""


def pages_for(tokens: int) -> int:
    return -(-tokens // PAGE)


class LatentPool:
    """`layers` caches of `pages` pages, rows of `width` values; one page table serves all layers."""

    def __init__(self, layers: int, pages: int, width: int, *, dtype: torch.dtype, device: torch.device) -> None:
        self.rows = torch.zeros(layers, pages, PAGE, width, dtype=dtype, device=device)
        self.pages = pages - 1  # page 0 is nobody's
        self._free = list(range(pages - 1, 0, -1))
        self._tables: dict[int, list[int]] = {}

    @property
    def free_pages(self) -> int:
        return len(self._free)

    def can_reserve(self, tokens: int) -> bool:
        return pages_for(tokens) <= len(self._free)

    def reserve(self, slot: int, tokens: int) -> None:
        """Give `slot` the pages of its longest possible life, so that no step can run out."""
        assert slot not in self._tables, "a slot is released before it is reserved again"
        self._tables[slot] = [self._free.pop() for _ in range(pages_for(tokens))]

    def release(self, slot: int) -> None:
        self._free.extend(reversed(self._tables.pop(slot)))

    def table(self, slot: int) -> list[int]:
        """The slot's pages in the order of its positions."""
        return self._tables[slot]

    def view(self, layer: int, window: Window, places: Places) -> LatentView:
        return LatentView(self.rows[layer], window, places)

    def places(self, window: Window) -> Places:
        """Where the window's rows go, and which pages its requests read."""
        tables = [to_device(self._tables[slot], window.device) for slot in window.slots]
        return Places(window, tables)


@dataclass(frozen=True)
class Places:
    """Page tables of one window, resolved once per pass and shared by all layers."""

    window: Window
    tables: list[Tensor]

    @cached_property
    def written(self) -> Tensor:
        """[n] flat cache rows of the new tokens."""
        positions = self.window.positions
        of_requests = [positions[first:end] for first, end in self.window.spans]
        pages = torch.cat([t[p // PAGE] for t, p in zip(self.tables, of_requests, strict=True)])
        return pages * PAGE + positions % PAGE

    @cached_property
    def table(self) -> Tensor:
        """[B, most pages of any request] page tables as one tensor; entries past a request's own are page 0."""
        return torch.nn.utils.rnn.pad_sequence(self.tables, batch_first=True)

    @cached_property
    def visible(self) -> list[Tensor]:
        """Per request, the pages up to its last new row."""
        return [
            table[: pages_for(start + end - first)]
            for table, start, (first, end) in zip(self.tables, self.window.starts, self.window.spans, strict=True)
        ]


@dataclass(frozen=True)
class LatentView:
    """One layer's cache as the attention operator sees it."""

    rows: Tensor  # [pages, PAGE, width]
    window: Window
    places: Places

    @property
    def positions(self) -> Tensor:
        """[n] absolute positions of the new rows."""
        return self.window.positions

    @property
    def table(self) -> Tensor:
        """[B, pages] page numbers of each request."""
        return self.places.table

    def write(self, rows: Tensor) -> None:
        """Store the window's rows [>= n, width] at their positions."""
        self.rows.flatten(0, 1)[self.places.written] = rows[: self.window.real_rows]

    def read(self, request: int) -> Tensor:
        """[n, PAGE, width] pages of the request's context and new rows."""
        return self.rows.index_select(0, self.places.visible[request])
