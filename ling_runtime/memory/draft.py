"""The cache of a DSpark draft: keys and values of all its layers, on the pages of the latents.

It has rows of its own and shares page tables and slots, so admission counts pages once. What lies past the committed
length is scratch: the block's own rows are put there while it is computed, and the next injection overwrites them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ling_runtime.memory.latent import PAGE, pages_for

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.memory.latent import LatentPool, Places


class DraftPool:
    """One row of `layers` times `width` values for every token of `latent`'s pages."""

    def __init__(self, latent: LatentPool, layers: int, width: int) -> None:
        self._latent = latent
        pages = latent.rows.shape[1]
        self.rows = torch.zeros(pages, PAGE, layers, width, dtype=latent.rows.dtype, device=latent.rows.device)

    def inject(self, places: Places, rows: Tensor) -> None:
        """Store rows [>= real rows, layers, width] of a window's tokens at their positions."""
        self.rows.flatten(0, 1)[places.written] = rows[: places.window.real_rows]

    def context(self, slot: int, length: int) -> Tensor:
        """The slot's first `length` rows and the rest of their last page, [n, layers, width].

        Pages in one piece are given as they are, others as a copy: what is written there is lost either way.
        """
        pages = self._latent.table(slot)[: pages_for(length)]
        first, count = pages[0], len(pages)
        if pages == list(range(first, first + count)):
            return self.rows[first : first + count].flatten(0, 1)
        index = torch.tensor(pages, device=self.rows.device)
        return self.rows.index_select(0, index).flatten(0, 1)


@dataclass(frozen=True)
class DeviceBlock:
    """`rows` consecutive positions of each of B requests from `starts` on, for operators that read the device."""

    cache: Tensor  # [pages, PAGE, layers, width]
    table: Tensor  # [B, most pages]
    starts: Tensor  # [B]
    rows: int
    turns: Tensor  # [positions, w / 2] complex rotations
