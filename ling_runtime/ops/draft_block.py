"""What a DSpark draft computes in a captured step: a block over paged context, the injection of context, the chain.

The reference variants here read lengths and pages back and compute as the eager proposer does; they say what the device
variants must give, and no graph can hold them. The surprise: a block's own keys and values are put into the cache
before attention reads it, behind the context, where the next injection overwrites them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from ling_runtime.memory.latent import PAGE, pages_for
from ling_runtime.ops.draft import attend_block, choose_draft, turn
from ling_runtime.ops.norm import normalise, widen
from ling_runtime.ops.registry import variant

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ling_runtime.memory.draft import DeviceBlock


@dataclass(frozen=True, kw_only=True)
class HeadNorms:
    """Norm weights of the heads that turn, wide: of `heads` queries and `groups` keys, [layers, heads + groups, d]."""

    weight: Tensor
    heads: int
    groups: int
    eps: float


class Chained(Protocol):
    """As much of a Markov head as the chain needs."""

    factors: tuple[Tensor, Tensor] | None
    """(W1, W2) [V, r] where the bias is W2 W1[previous] and nothing else."""

    def chain(self, hidden: Tensor) -> Callable[[int, Tensor], Tensor]: ...


@variant("draft_block")
def block_attention(
    projected: Tensor, block: DeviceBlock, norms: HeadNorms, layer: int, scale: float, causal: bool
) -> Tensor:
    """projected [B T, (H + 2 K) d] holding q|k|v -> [B T, H d]; leaves the block's keys and values in the cache."""
    units = projected.unflatten(1, (norms.heads + 2 * norms.groups, -1))
    both, values = _turned(units, block, norms.weight[0], norms.eps)
    _store(block, torch.cat([both[:, norms.heads :], values], dim=1).flatten(1), layer)
    outs = []
    for request, length in enumerate((block.starts + block.rows).tolist()):
        seen = block.cache[block.table[request, : pages_for(length)], :, layer].flatten(0, 1)[:length]
        keys, own = seen.unflatten(1, (2 * norms.groups, -1)).chunk(2, dim=1)
        mine = both[request * block.rows : (request + 1) * block.rows, : norms.heads]
        outs.append(attend_block(mine, keys, own, scale, causal))
    return torch.cat(outs).flatten(1)


@variant("draft_inject")
def inject_context(projected: Tensor, block: DeviceBlock, norms: HeadNorms) -> None:
    """projected [B T, layers 2 K d] holding k|v of each layer, into the cache at the block's positions."""
    layers = len(norms.weight)
    for layer, rows in enumerate(projected.unflatten(1, (layers, 2 * norms.groups, -1)).unbind(1)):
        keys, values = _turned(rows, block, norms.weight[layer], norms.eps)
        _store(block, torch.cat([keys, values], dim=1).flatten(1), layer)


@variant("draft_chain")
def choose_chain(base: Tensor, anchors: Tensor, hidden: Tensor, head: Chained) -> Tensor:
    """Base logits [B, g, V] and rows [B, g, D] behind anchors [B] -> drafts [B, g], each biased by the one before."""
    bias, tokens = head.chain(hidden), [anchors]
    for k in range(base.shape[1]):
        tokens.append(choose_draft(base[:, k], bias(k, tokens[-1]), hidden.dtype, None)[1])
    return torch.stack(tokens[1:], dim=1)


def _turned(units: Tensor, block: DeviceBlock, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Units [n, u + K, d]: the first u normed and turned to their positions, and the values behind them."""
    turned = len(weight)
    turns = block.turns[_positions(block)].unsqueeze(1)
    both = turn(normalise(widen(units[:, :turned]), weight, eps), turns).to(units.dtype)
    return both, units[:, turned:]


def _positions(block: DeviceBlock) -> Tensor:
    """[B T]"""
    return (block.starts[:, None] + torch.arange(block.rows, device=block.starts.device)).flatten()


def _store(block: DeviceBlock, rows: Tensor, layer: int) -> None:
    positions = _positions(block)
    requests = torch.arange(len(block.starts), device=positions.device).repeat_interleave(block.rows)
    block.cache[block.table[requests, positions // PAGE], positions % PAGE, layer] = rows
