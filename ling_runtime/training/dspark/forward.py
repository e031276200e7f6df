"""The draft network over many blocks of a sequence at once, differentiable.

It shares no line with the runtime's draft, so each checks the other. Blocks are laid end to end as one query sequence;
a mask gives every block what serving would: target states strictly before its anchor, and its own rows. The surprise:
keys and values of the context come from the fused target states as they are, without the layer's input norm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ling_runtime.training.layers import Params, rms, under, wide

if TYPE_CHECKING:
    from ling_runtime.draft_config import DraftConfig


class Turn(NamedTuple):
    """Rotations of n positions, [B or 1, 1, n, w / 2] each."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def at(cls, positions: Tensor, config: DraftConfig, dtype: torch.dtype) -> Turn:
        width = config.rotary_width
        exponents = torch.arange(0, width, 2, device=positions.device, dtype=torch.float64) / width
        angles = positions[:, None, :, None].double() * config.rope_theta**-exponents
        return cls(angles.cos().to(dtype), angles.sin().to(dtype))


class View(NamedTuple):
    """Where the R block rows and T context rows of a sequence stand, and what a block row sees."""

    own: Turn
    context: Turn
    mask: Tensor
    """[B, 1, R, T + R] bool, true where a block row sees a context row or a block row."""


def block_view(anchors: Tensor, length: int, config: DraftConfig, dtype: torch.dtype) -> View:
    """For blocks at anchors [B, N] of sequences of `length` tokens."""
    rows, device = config.block_rows, anchors.device
    context = torch.arange(length, device=device)
    block = torch.arange(anchors.shape[1], device=device).repeat_interleave(rows)
    own = block[:, None] == block[None, :]
    if config.is_causal:
        own = own.tril()
    before = context < anchors.repeat_interleave(rows, 1)[..., None]
    mask = torch.cat([before, own.expand(len(anchors), -1, -1)], -1)
    positions = (anchors[..., None] + torch.arange(rows, device=device)).flatten(1)
    return View(Turn.at(positions, config, dtype), Turn.at(context[None], config, dtype), mask[:, None])


def forward(
    params: Params, config: DraftConfig, embedding: Tensor, hidden: Tensor, ids: Tensor, anchors: Tensor
) -> Tensor:
    """Rows after the draft's final norm, [B, N, g, D], of blocks at anchors [B, N].

    hidden [B, T, m * D] are the captured target states of ids [B, T]; embedding [V, D] is the target's.
    """
    eps = config.rms_norm_eps
    context = rms(F.linear(hidden, params["fc.weight"]), params["hidden_norm.weight"], eps)
    tokens = ids.new_full((*anchors.shape, config.block_rows), config.mask_token_id)
    tokens[..., 0] = ids.gather(1, anchors)
    x = F.embedding(tokens.flatten(1), embedding)
    view = block_view(anchors, ids.shape[1], config, x.dtype)
    for index in range(config.num_hidden_layers):
        x = _layer(x, context, under(params, f"layers.{index}."), config, view)
    rows: Tensor = rms(x, params["norm.weight"], eps).unflatten(1, (-1, config.block_rows))
    return rows if config.sample_from_anchor else rows[:, :, 1:]


def _layer(x: Tensor, context: Tensor, p: Params, config: DraftConfig, view: View) -> Tensor:
    attend = _mla if config.attention_type == "mla" else _mha
    normed = rms(x, p["input_layernorm.weight"], config.rms_norm_eps)
    x = x + attend(normed, context, under(p, "self_attn."), config, view)
    return x + _mlp(rms(x, p["post_attention_layernorm.weight"], config.rms_norm_eps), under(p, "mlp."))


def _mlp(x: Tensor, p: Params) -> Tensor:
    gate, up = F.linear(x, torch.cat([p["gate_proj.weight"], p["up_proj.weight"]])).chunk(2, -1)
    return F.linear(F.silu(gate) * up, p["down_proj.weight"])


# ---------------------------------------------------------------------------------------------------------------------
# Attention


def _mha(x: Tensor, context: Tensor, p: Params, config: DraftConfig, view: View) -> Tensor:
    eps, heads, kv_heads = config.rms_norm_eps, config.num_attention_heads, config.num_key_value_heads

    def keys(rows: Tensor, turn: Turn) -> tuple[Tensor, Tensor]:
        k = rms(_heads(F.linear(rows, p["k_proj.weight"]), kv_heads), p["k_norm.weight"], eps)
        return rotate(k, turn, config), _heads(F.linear(rows, p["v_proj.weight"]), kv_heads)

    q = rms(_heads(F.linear(x, p["q_proj.weight"]), heads), p["q_norm.weight"], eps)
    k, v = _joined(keys(context, view.context), keys(x, view.own))
    group = heads // kv_heads
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    out = _attention(rotate(q, view.own, config), k, v, view.mask)
    return F.linear(out.transpose(1, 2).flatten(-2), p["o_proj.weight"])


def _mla(x: Tensor, context: Tensor, p: Params, config: DraftConfig, view: View) -> Tensor:
    heads, nope = config.num_attention_heads, config.qk_nope_head_dim

    def keys(rows: Tensor, turn: Turn) -> tuple[Tensor, Tensor]:
        compressed = wide(F.linear(rows, p["kv_a_proj_with_mqa.weight"]))
        latent, turned = compressed.split([config.kv_lora_rank, config.qk_rope_head_dim], -1)
        latent = rms(latent, p["kv_a_layernorm.weight"], config.rms_norm_eps)
        plain, v = _heads(F.linear(latent, p["kv_b_proj.weight"]), heads).split([nope, config.v_head_dim], -1)
        turned = rotate(turned[:, None], turn, config).expand(-1, heads, -1, -1)
        return torch.cat([plain, turned], -1), v

    q = _heads(F.linear(x, p["q_proj.weight"]), heads)
    q = torch.cat([q[..., :nope], rotate(q[..., nope:], view.own, config)], -1)
    k, v = _joined(keys(context, view.context), keys(x, view.own))
    gate = torch.sigmoid(wide(F.linear(x, p["g_proj.weight"]))).transpose(1, 2)[..., None]
    out = _attention(q, k, v, view.mask) * gate
    return F.linear(out.transpose(1, 2).flatten(-2), p["dense.weight"])


def _heads(x: Tensor, heads: int) -> Tensor:
    """[B, n, heads * w] to [B, heads, n, w], in full precision."""
    split: Tensor = wide(x).unflatten(-1, (heads, -1))
    return split.transpose(1, 2)


def _joined(context: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return torch.cat([context[0], own[0]], 2), torch.cat([context[1], own[1]], 2)


def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    device = q.device.type
    narrow = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else q.dtype
    return F.scaled_dot_product_attention(q.to(narrow), k.to(narrow), v.to(narrow), attn_mask=mask)


def rotate(x: Tensor, turn: Turn, config: DraftConfig) -> Tensor:
    """Turn the leading `rotary_width` dimensions of x [B, H, n, w]."""
    turning, still = x[..., : config.rotary_width], x[..., config.rotary_width :]
    a, b = turning.unflatten(-1, (-1, 2)).unbind(-1) if config.rope_interleave else turning.chunk(2, -1)
    pair = (a * turn.cos - b * turn.sin, a * turn.sin + b * turn.cos)
    turned = torch.stack(pair, -1).flatten(-2) if config.rope_interleave else torch.cat(pair, -1)
    return torch.cat([turned, still], -1)
