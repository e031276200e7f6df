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

from ling_runtime.training.dense import (
    PLAIN,
    Kernels,
    MlaProjections,
    Params,
    feed_forward,
    mla_output,
    mla_project,
    rms,
    under,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ling_runtime.config import ModelConfig


class Draft(NamedTuple):
    hidden: Tensor
    """After the draft layer's final norm, [B, n, D]; base i is row i."""
    load: Tensor
    """Share of rows each expert got."""


def chain(
    params: Params, config: ModelConfig, hidden: Tensor, ids: Tensor, depth: int, kernels: Kernels = PLAIN
) -> list[Draft]:
    """Drafts of depths 1 to `depth` for bases 0 .. T - depth - 1, fed with the sequence's own tokens.

    Depth d of base i guesses token i + d + 1, so the last base lacks a label at the last depth.
    """
    layer = config.num_hidden_layers
    p = under(params, f"model.layers.{layer}.")
    attention, ffn = under(p, "attention."), under(p, "mlp.")
    eps = config.rms_norm_eps
    bases = ids.shape[1] - depth
    positions = torch.arange(bases, device=ids.device)
    hidden = hidden[:, :bases]
    rows: list[MlaProjections] = []
    drafts: list[Draft] = []
    for d in range(1, depth + 1):
        token = params["model.word_embeddings.weight"][ids[:, d : d + bases]]
        joined = torch.cat([rms(token, p["enorm.weight"], eps), rms(hidden, p["hnorm.weight"], eps)], -1)
        x = F.linear(joined, p["eh_proj.weight"])
        rows.append(mla_project(rms(x, p["input_layernorm.weight"], eps), attention, config, positions + d - 1))
        x = x + mla_output(_chain_attention(rows), rows[-1].gate, attention)
        out, load = feed_forward(rms(x, p["post_attention_layernorm.weight"], eps), ffn, config, layer, kernels)
        hidden = rms(x + out, p["final_layernorm.weight"], eps)
        assert load is not None
        drafts.append(Draft(hidden, load))
    return drafts


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
