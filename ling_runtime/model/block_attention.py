"""Attention of a draft block over the injected context, in two structures: multi-head, or Ling's gated MLA.

Each cached row is one token in one layer: keys and values, or a latent. It is made by `Context` from a fused target
row, for all layers in one product, and by the block's own rows through the same weights. The surprise: the fused row
enters as it is, while a block row has passed the layer's input norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from ling_runtime.ops.activation import sigmoid
from ling_runtime.ops.draft import pair_order, turn
from ling_runtime.ops.draft_block import HeadNorms
from ling_runtime.ops.linear import pad_rows, per_head
from ling_runtime.ops.norm import normalise, rms_norm, widen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from ling_runtime.draft_config import DraftConfig
    from ling_runtime.memory.draft import DeviceBlock
    from ling_runtime.model.packing import Packer
    from ling_runtime.ops.registry import Kernels


@dataclass(frozen=True)
class Block:
    """The rows of one draft pass: `rows` for each request, the first at its position `starts[b]`.

    `contexts[b]` [n, layers, width] are the request's cached rows with room for the block's own behind `starts[b]`,
    and `turns` [R, 1, w / 2] the rotations of the block's positions.
    """

    rows: int
    starts: tuple[int, ...]
    contexts: Sequence[Tensor]
    turns: Tensor


class BlockAttention(Protocol):
    """One layer."""

    def __call__(self, x: Tensor, block: Block) -> Tensor:
        """Normed rows [R, D] -> [R, D]; leaves the block's own rows in the contexts, as scratch."""


class Context(Protocol):
    """What all layers cache of a token."""

    width: int

    def __call__(self, fused: Tensor, turns: Tensor) -> Tensor:
        """Fused target rows [R, D] and their rotations [R, w / 2] -> [R, layers, width]."""


def attention(config: DraftConfig, weights: Packer, kernels: Kernels) -> tuple[Context, list[BlockAttention]]:
    """Of all layers under `weights`."""
    layers = [weights.at(f"layers.{i}.self_attn") for i in range(config.num_hidden_layers)]
    if config.attention_type == "mla":
        return MlaContext(config, layers, kernels), [MlaBlock(config, w, i, kernels) for i, w in enumerate(layers)]
    return MhaContext(config, layers, kernels), [MhaBlock(config, w, i, kernels) for i, w in enumerate(layers)]


# Multi-head --------------------------------------------------------------------------------------------------------


class MhaContext:
    def __init__(self, config: DraftConfig, layers: Sequence[Packer], kernels: Kernels) -> None:
        self._heads, self._eps, self._linear = config.num_key_value_heads, config.rms_norm_eps, kernels["linear"]
        self.width = 2 * self._heads * config.head_dim
        self._in = torch.cat([torch.cat([_paired(w, "k_proj", config), w("v_proj.weight")]) for w in layers])
        order = _order(config)
        self._norm = torch.stack([w.wide("k_norm.weight")[order] for w in layers]).unsqueeze(1)
        every = self._norm.expand(-1, self._heads, -1).contiguous()
        self._norms = HeadNorms(weight=every, heads=0, groups=self._heads, eps=self._eps)
        self._inject = kernels["draft_inject"]

    def into_pages(self, fused: Tensor, block: DeviceBlock) -> None:
        """Fused target rows [B T, D] into the cache at the block's positions."""
        self._inject(self._linear(fused, self._in), block, self._norms)

    def __call__(self, fused: Tensor, turns: Tensor) -> Tensor:
        rows = self._linear(fused, self._in).unflatten(1, (self._norm.shape[0], 2 * self._heads, -1))
        keys, values = rows.chunk(2, dim=2)
        keys = turn(normalise(widen(keys), self._norm, self._eps), turns[:, None, None]).to(rows.dtype)
        return torch.cat([keys, values], dim=2).flatten(2)


class MhaBlock:
    def __init__(self, config: DraftConfig, weights: Packer, layer: int, kernels: Kernels) -> None:
        self._layer, self._eps, self._causal = layer, config.rms_norm_eps, config.is_causal
        self._heads, self._groups = config.num_attention_heads, config.num_key_value_heads
        self._linear, self._attend = kernels["linear"], kernels["draft_attention"]
        self._attend_pages = kernels["draft_block"]
        self._in = torch.cat(
            [_paired(weights, "q_proj", config), _paired(weights, "k_proj", config), weights("v_proj.weight")]
        )
        order = _order(config)
        query, key = weights.wide("q_norm.weight")[order], weights.wide("k_norm.weight")[order]
        self._norm = torch.cat([query.expand(self._heads, -1), key.expand(self._groups, -1)])
        self._norms = HeadNorms(weight=self._norm.unsqueeze(0), heads=self._heads, groups=self._groups, eps=self._eps)
        self._out, self._scale = weights("o_proj.weight"), config.head_dim**-0.5

    def over_pages(self, x: Tensor, block: DeviceBlock) -> Tensor:
        """As a call, for normed rows [B T, D] of a block whose lengths and pages are on the device."""
        rows = self._linear(x, self._in)
        out = self._attend_pages(rows, block, self._norms, self._layer, self._scale, self._causal)
        return self._linear(out, self._out)  # type: ignore[no-any-return]

    def __call__(self, x: Tensor, block: Block) -> Tensor:
        turned = self._heads + self._groups
        rows = self._linear(x, self._in).unflatten(1, (turned + self._groups, -1))
        both = turn(normalise(widen(rows[:, :turned]), self._norm, self._eps), block.turns).to(rows.dtype)
        own = torch.cat([both[:, self._heads :], rows[:, turned:]], dim=1).flatten(1)
        outs = []
        for mine, seen in _requests(own, block, self._layer):
            keys, values = seen.unflatten(1, (2 * self._groups, -1)).chunk(2, dim=1)
            outs.append(self._attend(both[mine, : self._heads], keys, values, self._scale, self._causal))
        return self._linear(pad_rows(torch.cat(outs).flatten(1)), self._out)  # type: ignore[no-any-return]


# Multi-head latent, gated -------------------------------------------------------------------------------------------


class MlaContext:
    def __init__(self, config: DraftConfig, layers: Sequence[Packer], kernels: Kernels) -> None:
        self._rank, self._eps, self._linear = config.kv_lora_rank, config.rms_norm_eps, kernels["linear"]
        self.width = config.kv_lora_rank + config.qk_rope_head_dim
        self._in = torch.cat([_latent(w, config) for w in layers])
        self._norm = torch.stack([w.wide("kv_a_layernorm.weight") for w in layers])

    def __call__(self, fused: Tensor, turns: Tensor) -> Tensor:
        rows = self._linear(fused, self._in).unflatten(1, (-1, self.width))
        latent = normalise(widen(rows[..., : self._rank]), self._norm, self._eps)
        key = turn(widen(rows[..., self._rank :]).contiguous(), turns[:, None])
        return torch.cat([latent, key], dim=-1).to(rows.dtype)


class MlaBlock:
    """Queries are moved into latent space, so a cached latent is key and value of all heads."""

    def __init__(self, config: DraftConfig, weights: Packer, layer: int, kernels: Kernels) -> None:
        heads, nope, rank = config.num_attention_heads, config.qk_nope_head_dim, config.kv_lora_rank
        self._layer, self._eps, self._causal = layer, config.rms_norm_eps, config.is_causal
        self._heads, self._nope, self._rank = heads, nope, rank
        self._linear, self._attend = kernels["linear"], kernels["draft_attention"]
        self._width = nope + config.qk_rope_head_dim
        order = torch.cat([torch.arange(nope), nope + _order(config)])
        query = weights("q_proj.weight").unflatten(0, (heads, self._width))[:, order].flatten(0, 1)
        self._in = torch.cat([query, _latent(weights, config), weights("g_proj.weight")])
        self._norm = weights("kv_a_layernorm.weight")
        up = weights("kv_b_proj.weight").view(heads, nope + config.v_head_dim, rank)
        self._key_up, self._value_up = up[:, :nope].contiguous(), up[:, nope:].transpose(1, 2).contiguous()
        self._out, self._scale = weights("dense.weight"), self._width**-0.5

    def __call__(self, x: Tensor, block: Block) -> Tensor:
        rope = self._width - self._nope
        sizes = [self._heads * self._width, self._rank, rope, self._heads]
        query, latent, key, gate = self._linear(x, self._in).split_with_sizes(sizes, dim=1)
        query = query.unflatten(1, (self._heads, self._width))
        heads = torch.cat([query[..., self._nope :], key.unsqueeze(1)], dim=1)
        turned = turn(widen(heads), block.turns).to(x.dtype)
        query = torch.cat([per_head(query[..., : self._nope], self._key_up), turned[:, :-1]], dim=-1)
        own = torch.cat([rms_norm(latent, self._norm, self._eps), turned[:, -1]], dim=-1)
        outs = []
        for mine, seen in _requests(own, block, self._layer):
            keys = seen.unsqueeze(1)
            outs.append(self._attend(query[mine], keys, keys[..., : self._rank], self._scale, self._causal))
        out = per_head(pad_rows(torch.cat(outs)), self._value_up)
        out = out * sigmoid(widen(gate)).to(out.dtype).unsqueeze(-1)
        return self._linear(out.flatten(1), self._out)  # type: ignore[no-any-return]


# ---------------------------------------------------------------------------------------------------------------------


def _requests(own: Tensor, block: Block, layer: int) -> list[tuple[slice, Tensor]]:
    """Per request, its rows of the block, and what they see: cached rows and the block's own, put behind them."""
    pairs = []
    for request, (context, start) in enumerate(zip(block.contexts, block.starts, strict=True)):
        mine = slice(request * block.rows, (request + 1) * block.rows)
        seen = context[: start + block.rows, layer]
        seen[start:] = own[mine]
        pairs.append((mine, seen))
    return pairs


def _order(config: DraftConfig) -> Tensor:
    """Of the dimensions of one head, or of the turning part alone where MLA keeps it apart."""
    turning = config.rotary_width
    width = turning if config.attention_type == "mla" else config.head_dim
    return pair_order(turning, width, interleaved=config.rope_interleave)


def _paired(weights: Packer, name: str, config: DraftConfig) -> Tensor:
    rows = weights(f"{name}.weight").view(-1, config.head_dim, config.hidden_size)
    return rows[:, _order(config)].flatten(0, 1)


def _latent(weights: Packer, config: DraftConfig) -> Tensor:
    rows, rank = weights("kv_a_proj_with_mqa.weight"), config.kv_lora_rank
    return torch.cat([rows[:rank], rows[rank:][_order(config)]])
