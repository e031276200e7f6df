"""What a DSpark draft computes beside its projections: attention of a block over its context, and the choice of a
draft.

The surprise: a block's rows see each other in both directions, so their bits belong to the block as a whole. They
depend on its request's context and on nothing else; requests are computed one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ling_runtime.ops.norm import widen
from ling_runtime.ops.registry import variant

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Gumbel:
    """Noise of one choice: values [B, V] and temperature [B, 1] in fp64; a greedy request has 0 and 1."""

    values: Tensor
    temperature: Tensor


@variant("draft_attention")
def attend_block(query: Tensor, keys: Tensor, values: Tensor, scale: float, causal: bool) -> Tensor:
    """One request: query [g, H, w] over keys [n, K, w] and values [n, K, v], the last g of which are the block's own.

    H is a multiple of K. Returns [g, H, v]; `causal` hides from a row the block's later ones.
    """
    rows, heads, width = query.shape
    groups = keys.shape[1]
    grouped = query.view(rows, groups, -1, width).permute(1, 2, 0, 3).reshape(groups, -1, width)
    scores = widen(torch.bmm(grouped, keys.permute(1, 2, 0))).mul_(scale)
    if causal:
        later = torch.ones(rows, rows, dtype=torch.bool, device=query.device).triu_(1)
        scores.view(groups, -1, rows, keys.shape[0])[..., -rows:].masked_fill_(later, -torch.inf)
    out = torch.bmm(scores.softmax(-1).to(values.dtype), values.transpose(0, 1))
    return out.view(heads, rows, -1).transpose(0, 1)


@variant("draft_choice")
def choose_draft(base: Tensor, bias: Tensor, dtype: torch.dtype, noise: Gumbel | None) -> tuple[Tensor, Tensor]:
    """Step logits base + bias [B, V] rounded to `dtype`, and the drafts [B] chosen by them.

    Rounding comes before the choice, so that the distribution reported for a sampled draft is the one it came from.
    """
    logits = (base + bias).to(dtype)
    if noise is None:
        return logits, logits.argmax(dim=-1)
    return logits, (logits.double() / noise.temperature + noise.values).argmax(dim=-1)


def turn_table(theta: float, turning: int, width: int, length: int) -> Tensor:
    """Rotations of positions 0..length - 1 as complex128 [length, width / 2]; past `turning` dimensions none."""
    exponents = torch.arange(0, turning, 2, dtype=torch.float64) / turning
    angles = torch.arange(length, dtype=torch.float64)[:, None] * theta**-exponents
    angles = torch.nn.functional.pad(angles, (0, (width - turning) // 2))
    return torch.polar(torch.ones_like(angles), angles)


def turn(x: Tensor, table: Tensor) -> Tensor:
    """Rotate adjacent pairs of x [..., w], wide, by table [..., w / 2] of the same precision."""
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * table).flatten(-2)


def pair_order(turning: int, width: int, *, interleaved: bool) -> Tensor:
    """Order [w] that puts the partners of a rotation side by side: halves (j, j + turning / 2) become pairs.

    Queries and keys are reordered alike when weights are packed, which leaves every score what it was.
    """
    order = torch.arange(width)
    if not interleaved:
        order[:turning] = order[:turning].view(2, -1).t().flatten()
    return order
