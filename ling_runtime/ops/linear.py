"""Matrix products in tiles of 16 rows.

A library product chooses its blocking by the number of rows, so the same row gets other bits in a window of 4 than
alone. Sixteen rows always, zero rows included, take that freedom away; a batched product over tiles has the bits of
one tile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from ling_runtime.config import TILE
from ling_runtime.ops.registry import variant

if TYPE_CHECKING:
    from torch import Tensor


def padded(rows: int) -> int:
    """`rows` rounded up to whole tiles."""
    return -(-rows // TILE) * TILE


def pad_rows(x: Tensor) -> Tensor:
    """Append zero rows to [R, ...] until R is a whole number of tiles."""
    short = padded(x.shape[0]) - x.shape[0]
    return torch.cat([x, x.new_zeros(short, *x.shape[1:])]) if short else x


@variant("linear")
def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [R, K] @ weight [N, K]^T -> [R, N]; R a whole number of tiles."""
    if x.shape[0] == TILE:
        return F.linear(x, weight)
    tiles = x.view(-1, TILE, x.shape[1])
    return torch.bmm(tiles, weight.t().expand(tiles.shape[0], -1, -1)).view(x.shape[0], -1)


def per_head(x: Tensor, weight: Tensor) -> Tensor:
    """x [R, H, K] times one matrix per head, weight [H, K, N] -> [R, H, N], in tiles."""
    heads = x.shape[1]
    tiles = x.view(-1, TILE, heads, x.shape[2]).transpose(1, 2)
    count = tiles.shape[0]
    flat = tiles.reshape(count * heads, TILE, -1)
    product = torch.bmm(flat, weight.repeat(count, 1, 1) if count > 1 else weight)
    return product.view(count, heads, TILE, -1).transpose(1, 2).reshape(x.shape[0], heads, -1)
