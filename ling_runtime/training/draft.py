"""The NEXTN layer's chain of drafts, differentiable and for every position of a sequence at once.

Base i stands for a committed row: it reads the target's hidden state of i and token i + 1, and guesses token i + 2.
Depth d of the same chain sits d - 1 positions on and reads the chain's own hidden state instead. In serving, depth d
sees the keys of committed rows up to i and those of its own chain, never a deeper row of another base; the attention
here has exactly that shape, a causal square for committed rows plus one extra column per later depth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ling_runtime.training.dense import PLAIN, Blocks, embed, feed_forward
from ling_runtime.training.layers import MlaProjections, Params, mla_output, mla_project, rms, under

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ling_runtime.config import ModelConfig


class Draft(NamedTuple):
    hidden: Tensor
    """After the draft layer's final norm, [B, n, D]; base i is row i."""
    load: Tensor
    """Share of rows each expert got."""


def chain(
    params: Params, config: ModelConfig, hidden: Tensor, ids: Tensor, depth: int, blocks: Blocks = PLAIN
) -> list[Draft]:
    """Drafts of depths 1 to `depth` for every base of hidden [B, n, D], fed with the sequence's own ids [B, n + depth].

    Depth d of base i reads token i + d and guesses token i + d + 1.
    """
    p = under(params, f"model.layers.{config.num_hidden_layers}.")
    bases = hidden.shape[1]
    assert ids.shape[1] == bases + depth
    positions = torch.arange(bases, device=ids.device)
    rows: list[MlaProjections] = []
    drafts: list[Draft] = []
    for d in range(1, depth + 1):
        x = _join(embed(params, ids[:, d : d + bases]), hidden, p, config)
        x, load = _layer(x, rows, positions + d - 1, p, config, blocks)
        hidden = rms(x, p["final_layernorm.weight"], config.rms_norm_eps)
        drafts.append(Draft(hidden, load))
    return drafts


def _join(token: Tensor, hidden: Tensor, p: Params, config: ModelConfig) -> Tensor:
    eps = config.rms_norm_eps
    both = torch.cat([rms(token, p["enorm.weight"], eps), rms(hidden, p["hnorm.weight"], eps)], -1)
    return F.linear(both, p["eh_proj.weight"])


def _layer(
    x: Tensor, rows: list[MlaProjections], positions: Tensor, p: Params, config: ModelConfig, blocks: Blocks
) -> tuple[Tensor, Tensor]:
    """One depth; leaves its keys and values in `rows` for the depths to come."""
    attention = under(p, "attention.")
    normed = rms(x, p["input_layernorm.weight"], config.rms_norm_eps)
    rows.append(mla_project(normed, attention, config, positions))
    x = x + mla_output(_chain_attention(rows), rows[-1].gate, attention)
    x, load = feed_forward(x, p, config, config.num_hidden_layers, blocks)
    assert load is not None
    return x, load


def _chain_attention(rows: Sequence[MlaProjections]) -> Tensor:
    """Attention of the last depth over the committed rows (the first entry) and its own chain."""
    committed, last = rows[0], rows[-1]
    if len(rows) == 1:
        return F.scaled_dot_product_attention(last.q, last.k, last.v, is_causal=True)
    q = last.q * last.q.shape[-1] ** -0.5
    square = q @ committed.k.mT
    future = torch.ones(square.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    own = torch.stack([(q * row.k).sum(-1) for row in rows[1:]], -1)
    weights = torch.cat([square.masked_fill(future, -torch.inf), own], -1).softmax(-1)
    bases = square.shape[-1]
    out = weights[..., :bases] @ committed.v
    return out + sum(weights[..., bases + i, None] * row.v for i, row in enumerate(rows[1:]))
