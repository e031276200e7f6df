"""Multi-head latent attention over a window, against the paged cache of latents.

Heads share one cached row (latent | rotated key), so queries are moved into latent space and all heads read the same
keys. Scores and sums are computed per page of 64 keys in fixed shapes and added in a tree over absolute page numbers:
what a row gets depends on its context alone, and pages past it add exact zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ling_runtime.config import TILE
from ling_runtime.ops.activation import sigmoid
from ling_runtime.ops.linear import pad_rows, per_head
from ling_runtime.ops.norm import rms_norm, widen
from ling_runtime.ops.registry import variant
from ling_runtime.ops.rope import rotate

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.memory.latent import LatentView


@dataclass(frozen=True, kw_only=True)
class MlaWeights:
    """What one MLA layer needs besides its projections; H heads, latent rank r, RoPE width p."""

    kv_norm: Tensor  # [r]
    key_up: Tensor  # [H, nope, r]: queries into latent space
    value_up: Tensor  # [H, r, v]: latent sums back to values
    rope: Tensor  # [positions, 2, p / 2]
    scale: float
    eps: float


@variant("mla_window")
def mla_window(projected: Tensor, cache: LatentView, weights: MlaWeights) -> Tensor:
    """projected [R, H (nope + p) + r + p + H] holding q|latent|k_rope|gate -> o [R, H v]; writes the cache.

    The gate is one sigmoid per head, rounded to the row's precision before it multiplies.
    """
    heads, nope, rank = weights.key_up.shape
    rope_width = 2 * weights.rope.shape[-1]
    query_width = heads * (nope + rope_width)
    query, latent, key_rope, gate = projected.split_with_sizes([query_width, rank, rope_width, heads], dim=-1)
    table = pad_rows(weights.rope.index_select(0, cache.positions))
    query = query.view(projected.shape[0], heads, -1)
    key = rotate(key_rope, table)
    cache.write(torch.cat([rms_norm(latent, weights.kv_norm, weights.eps), key], dim=-1))
    absorbed = per_head(query[..., :nope], weights.key_up)
    rotated = rotate(query[..., nope:], table.unsqueeze(1))
    context = attend(torch.cat([absorbed, rotated], dim=-1).mul_(weights.scale), cache, rank)
    out = per_head(context, weights.value_up)
    return (out * sigmoid(widen(gate)).to(out.dtype).unsqueeze(-1)).flatten(1)


def attend(query: Tensor, cache: LatentView, rank: int) -> Tensor:
    """Scaled query [R, H, r + p] against each request's pages -> latent sums [R, H, r]; causal by position."""
    heads = query.shape[1]
    outputs = []
    for request, (start, (first, end)) in enumerate(zip(cache.window.starts, cache.window.spans, strict=True)):
        pages = cache.read(request)
        flat = pad_rows(query[first:end].flatten(0, 1))
        limit = pad_rows(cache.positions[first:end].repeat_interleave(heads)).view(-1, TILE)
        tiles = [
            attend_tile(tile, pages, last, start // pages.shape[1], rank)
            for tile, last in zip(flat.view(-1, TILE, flat.shape[-1]), limit, strict=True)
        ]
        outputs.append(torch.cat(tiles)[: (end - first) * heads].view(end - first, heads, rank))
    return pad_rows(torch.cat(outputs))


def attend_tile(query: Tensor, pages: Tensor, limit: Tensor, first_masked: int, rank: int) -> Tensor:
    """query [16, w], pages [n, page, w], limit [16] = last visible position of each row -> [16, r].

    Every row sees all of the first `first_masked` pages; in the rest a masked key weighs exactly zero.
    """
    count, page = pages.shape[:2]
    scores = widen(torch.bmm(query.expand(count, -1, -1), pages.transpose(1, 2)))
    place = torch.arange(first_masked * page, count * page, device=pages.device).view(-1, 1, page)
    scores[first_masked:].masked_fill_(place > limit.unsqueeze(1), -torch.inf)
    weights = (scores - scores.amax(dim=(0, 2)).unsqueeze(1)).exp_()
    values = torch.bmm(weights.to(pages.dtype), pages.narrow(-1, 0, rank))
    sums = tree_sum(torch.cat([widen(values), weights.sum(-1, keepdim=True)], dim=-1))
    return (sums[:, :rank] / sums[:, rank:]).to(query.dtype)


def tree_sum(x: Tensor) -> Tensor:
    """Sum over the first dimension by pairs (2i, 2i + 1): zeros appended to x leave every bit of the sum."""
    while x.shape[0] > 1:
        if x.shape[0] % 2:
            x = torch.cat([x, torch.zeros_like(x[:1])])
        x = x[0::2] + x[1::2]
    return x[0]
