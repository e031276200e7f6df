"""The sublayers of the architecture, differentiable: KDA, expanded MLA, SwiGLU and the mixture of experts.

Each takes normed rows [B, T, D] and its parameters under their short names. Experts are evaluated densely, as one wide
gated layer whose routing weights are mostly zero: with sixteen small experts that is cheaper than moving tokens about,
and the router gets its gradient through the weights. Matrix products run in the caller's autocast type; what the model
defines in fp32 stays there (or in float64, for tests).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ling_runtime.training.kda import KdaInputs, chunked, l2_normalise, log_decay, short_conv

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ling_runtime.config import ModelConfig

Params = dict[str, Tensor]


def under(params: Mapping[str, Tensor], prefix: str) -> Params:
    """The parameters below a prefix, under their short names."""
    return {name[len(prefix) :]: value for name, value in params.items() if name.startswith(prefix)}


def wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = wide(x)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


# ---------------------------------------------------------------------------------------------------------------------
# KDA


class KdaProjections(NamedTuple):
    inputs: KdaInputs
    gate: Tensor
    """Output gate before the sigmoid, [B, T, H, dv]."""
    raw: Tensor
    """Rows before the convolution, [B, T, 3*H*d]: the last K-1 of them are the convolution's state."""


def kda_project(x: Tensor, p: Params, config: ModelConfig, past: Tensor) -> KdaProjections:
    heads, width = config.num_attention_heads, config.head_dim
    inner = heads * width
    weight = torch.cat([p[f"{name}_proj.weight"] for name in "qkvfgb"])
    raw, f, gate, beta = F.linear(x, weight).split([3 * inner, inner, inner, heads], -1)
    taps = torch.cat([p[f"{name}_conv1d.weight"] for name in "qkv"])
    q, k, v = short_conv(wide(raw), taps, past).unflatten(-1, (3, heads, width)).unbind(-3)
    decay = log_decay(
        wide(f).unflatten(-1, (heads, width)), p["dt_bias"].view(heads, width), p["A_log"], config.kda_lower_bound
    )
    inputs = KdaInputs(l2_normalise(q) * width**-0.5, l2_normalise(k), v, decay, torch.sigmoid(wide(beta)))
    return KdaProjections(inputs, gate.unflatten(-1, (heads, width)), wide(raw))


def kda_output(out: Tensor, gate: Tensor, p: Params, config: ModelConfig) -> Tensor:
    out = rms(out, p["o_norm.weight"], config.rms_norm_eps) * torch.sigmoid(wide(gate))
    return F.linear(out.flatten(-2), p["o_proj.weight"])


def kda(x: Tensor, p: Params, config: ModelConfig) -> Tensor:
    past = wide(x).new_zeros(
        x.shape[0], config.short_conv_kernel_size - 1, 3 * config.num_attention_heads * config.head_dim
    )
    projections = kda_project(x, p, config, past)
    with torch.autocast(x.device.type, enabled=False):
        out = chunked(projections.inputs, config.kda_lower_bound)
    return kda_output(out, projections.gate, p, config)


# ---------------------------------------------------------------------------------------------------------------------
# MLA, expanded


class MlaProjections(NamedTuple):
    """q and k are [B, H, T, nope + rope], v [B, H, T, dv], gate [B, H, T, 1] after its sigmoid."""

    q: Tensor
    k: Tensor
    v: Tensor
    gate: Tensor


def rope(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotate adjacent pairs of the last axis; positions broadcast against x's second-to-last axis."""
    width = x.shape[-1]
    exponents = torch.arange(0, width, 2, device=x.device, dtype=torch.float64) / width
    angles = positions[:, None].double() * theta**-exponents
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


def mla_project(x: Tensor, p: Params, config: ModelConfig, positions: Tensor) -> MlaProjections:
    heads, nope, rot = config.num_attention_heads, config.qk_nope_head_dim, config.qk_rope_head_dim
    q = wide(F.linear(x, p["q_proj.weight"])).unflatten(-1, (heads, nope + rot)).transpose(1, 2)
    latent, k_rot = wide(F.linear(x, p["kv_a_proj_with_mqa.weight"])).split([config.kv_lora_rank, rot], -1)
    latent = rms(latent, p["kv_a_layernorm.weight"], config.rms_norm_eps)
    expanded = (
        wide(F.linear(latent, p["kv_b_proj.weight"])).unflatten(-1, (heads, nope + config.v_head_dim)).transpose(1, 2)
    )
    k_nope, v = expanded.split([nope, config.v_head_dim], -1)
    theta = config.rope_theta
    k_rot = rope(k_rot, positions, theta)[:, None].expand(-1, heads, -1, -1)
    q = torch.cat([q[..., :nope], rope(q[..., nope:], positions, theta)], -1)
    gate = torch.sigmoid(wide(F.linear(x, p["g_proj.weight"]))).transpose(1, 2)[..., None]
    return MlaProjections(q, torch.cat([k_nope, k_rot], -1), v, gate)


def mla_output(out: Tensor, gate: Tensor, p: Params) -> Tensor:
    return F.linear((out * gate).transpose(1, 2).flatten(-2), p["dense.weight"])


def mla(x: Tensor, p: Params, config: ModelConfig, positions: Tensor) -> Tensor:
    q, k, v, gate = mla_project(x, p, config, positions)
    narrow = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else q.dtype
    out = F.scaled_dot_product_attention(q.to(narrow), k.to(narrow), v.to(narrow), is_causal=True)
    return mla_output(out, gate, p)


# ---------------------------------------------------------------------------------------------------------------------
# Feed-forward


def swiglu(gate: Tensor, up: Tensor, limit: Tensor) -> Tensor:
    """min(silu(gate), limit) * clamp(up, -limit, limit); an infinite limit is the plain form."""
    return torch.minimum(F.silu(gate), limit) * torch.maximum(torch.minimum(up, limit), -limit)


def mlp(x: Tensor, p: Params, limit: Tensor) -> Tensor:
    gate, up = F.linear(x, torch.cat([p["gate_proj.weight"], p["up_proj.weight"]])).chunk(2, -1)
    return F.linear(swiglu(gate, up, limit.to(gate.dtype)), p["down_proj.weight"])


def top_mask(scores: Tensor, k: int) -> Tensor:
    """True at the k largest of the last axis; of equal scores the lower index wins."""
    index = torch.arange(scores.shape[-1], device=scores.device)
    ahead = (scores[..., None, :] > scores[..., :, None]) | (
        (scores[..., None, :] == scores[..., :, None]) & (index[None, :] < index[:, None])
    )
    return ahead.sum(-1) < k


def route(x: Tensor, p: Params, config: ModelConfig) -> Tensor:
    """Routing weights [..., E], zero for experts not chosen; the bias selects and does not weigh."""
    with torch.autocast(x.device.type, enabled=False):
        scores = torch.sigmoid(F.linear(wide(x), p["gate.weight"]))
    biased = scores.detach() + p["gate.expert_bias"].detach()
    grouped = biased.unflatten(-1, (config.n_group, -1))
    group_scores = torch.where(top_mask(grouped, 2), grouped, 0.0).sum(-1)
    allowed = top_mask(group_scores, config.topk_group)[..., None].expand_as(grouped).flatten(-2)
    chosen = top_mask(torch.where(allowed, biased, -torch.inf), config.num_experts_per_tok)
    weights = torch.where(chosen, scores, 0.0)
    return weights / (weights.sum(-1, keepdim=True) + 1e-20) * config.routed_scaling_factor


def moe(x: Tensor, p: Params, config: ModelConfig, limit: Tensor, shared_limit: Tensor) -> tuple[Tensor, Tensor]:
    """Output and the share of tokens each expert got, [E]."""
    weights = route(x, p, config)
    stack = {n: [p[f"experts.{e}.{n}_proj.weight"] for e in range(config.num_experts)] for n in ("gate", "up", "down")}
    gate, up = F.linear(x, torch.cat(stack["gate"] + stack["up"])).chunk(2, -1)
    hidden = swiglu(gate, up, limit.to(gate.dtype)).unflatten(-1, (config.num_experts, -1))
    hidden = (hidden * weights[..., None].to(hidden.dtype)).flatten(-2)
    routed = F.linear(hidden, torch.cat(stack["down"], 1))
    load = (weights > 0).flatten(0, -2).to(weights.dtype).mean(0)
    return routed + mlp(x, under(p, "shared_experts."), shared_limit), load
