"""Kimi delta attention over a window of rows, from the committed state, without writing it.

Rows are laid on a grid of 16-row chunks at absolute positions and every chunk is computed in the chunk form from the
state at its boundary. The surprise is what that buys: a row meets the same operands at the same place of the same
shapes whether it arrives by prefill, by plain decoding or as the fifth row of a verify window, so its bits are the
same in all three, with no loop over rows. The price is that up to 15 committed rows are kept per request and computed
again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ling_runtime.config import TILE
from ling_runtime.ops.activation import sigmoid, silu
from ling_runtime.ops.linear import pad_rows
from ling_runtime.ops.norm import l2_norm, normalise, widen
from ling_runtime.ops.registry import variant

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ling_runtime.memory.window import Window

    Linear = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class KdaWeights:
    """What one KDA layer needs besides its projections; H heads of width d, C = 3 H d channels q|k|v."""

    conv: Tensor  # [C, kernel] fp32; the last tap multiplies the current row
    gate_scale: Tensor  # [2 H d + H] for f|gate|beta: exp(A_log) of its head for f, 1 elsewhere, fp32
    gate_bias: Tensor  # [2 H d + H]: exp(A_log) * dt_bias for f, 0 elsewhere, fp32
    o_norm: Tensor  # [d] fp32
    out: Tensor  # [D, H d], the output projection
    lower_bound: float
    eps: float


@dataclass(frozen=True)
class KdaState:
    """Committed state of B requests at their chunk boundary, and the rows since."""

    conv: Tensor  # [B, kernel - 1, C] raw rows before the convolution, oldest first
    ring: Tensor  # [B, 16, H, 4 d + 1] rows q|k|v|g|beta since the boundary
    state: Tensor  # [B, H, d, d] keys by values
    index: Tensor | None = None
    """[B] entries of the requests in whole pools (a captured step); None: the tensors are theirs, in order."""
    staging: KdaStaged | None = None
    """Where a captured step stages; None: fresh tensors."""
    lead: tuple[Tensor, Tensor] | None = None
    """A captured step's states [slots, H, d, d], values by keys, and the positions [B] they are at: -1 none."""


@dataclass(frozen=True)
class KdaStaged:
    """What a commit of any prefix of the window can need."""

    conv: Tensor  # [B, kernel - 1 + T, C]
    grid: Tensor  # [B, chunks, 16, H, 4 d + 1]
    states: Tensor  # [B, closed chunks + 1, H, d, d]: at the boundary, then after each chunk the window can fill


@dataclass(frozen=True)
class KdaEnd:
    """What a window leaves whose rows are all accepted, whatever their number: a prompt's."""

    conv: Tensor  # [1, kernel - 1, C]
    ring: Tensor  # [1, 16, H, 4 d + 1], zeros past the last row
    state: Tensor  # [1, H, d, d] at the last chunk boundary


@variant("kda_window")
def kda_window(
    projected: Tensor, window: Window, weights: KdaWeights, state: KdaState, linear: Linear
) -> tuple[Tensor, KdaStaged]:
    """projected [R, 5 H d + H] holding q|k|v|f|gate|beta -> (rows [R, D] of the output projection, staging).

    Outputs are normed and gated by head before `linear`, the chosen variant, projects them.
    """
    assert state.index is None, "the reference reads gathered states"
    heads, width = state.state.shape[1:3]
    size = heads * width
    rows = window.spread(projected)
    raw, gates = rows.split_with_sizes([3 * size, 2 * size + heads], dim=-1)
    conv = torch.cat([state.conv, raw], dim=1)
    mixed = widen(short_conv(conv, weights.conv).to(projected.dtype)).view(*rows.shape[:2], 3, heads, width)
    opened = sigmoid((widen(gates) * weights.gate_scale).add_(weights.gate_bias))
    f, gate, beta = opened.split_with_sizes([size, size, heads], dim=-1)
    packed = pack_rows(mixed, f.view(mixed[:, :, 0].shape), beta, weights.lower_bound)
    grid = window.to_grid(state.ring, packed)
    out, states = chunked(grid, state.state, bound=weights.lower_bound, closed=window.closed_chunks)
    o = window.from_grid(out)
    normed = normalise(o, weights.o_norm, weights.eps).mul_(window.pack(gate).view(o.shape)).to(projected.dtype)
    return linear(pad_rows(normed.view(-1, size)), weights.out), KdaStaged(conv, grid, states)


def short_conv(source: Tensor, weight: Tensor) -> Tensor:
    """Causal depthwise convolution of source [B, K - 1 + T, C] with weight [C, K], then silu -> [B, T, C]."""
    taps = weight.unbind(1)
    rows = source.shape[1] - len(taps) + 1
    wide = widen(source)
    total = wide.narrow(1, 0, rows) * taps[0]
    for shift, tap in enumerate(taps[1:], start=1):
        total += wide.narrow(1, shift, rows) * tap
    return silu(total)


def pack_rows(mixed: Tensor, f: Tensor, beta: Tensor, bound: float) -> Tensor:
    """One row per token, [B, T, H, 4 d + 1] = q|k|v|g|beta: everything of the token that later rows can need.

    mixed [B, T, 3, H, d] is the convolved q, k, v; f [B, T, H, d] is sigmoid(exp(A_log) * (f + dt_bias)), so that g =
    bound * f is the log decay of the safe gate: in (bound, 0), with no minus sign before exp(A_log). beta [B, T, H].
    """
    query, key, value = mixed.unbind(2)
    scaled = l2_norm(query).mul_(query.shape[-1] ** -0.5)
    return torch.cat([scaled, l2_norm(key), value, f * bound, beta.unsqueeze(-1)], dim=-1)


def chunked(grid: Tensor, state: Tensor, *, bound: float, closed: int) -> tuple[Tensor, Tensor]:
    """The chunk form over grid [B, n, 16, H, 4 d + 1] from state [B, H, d, d].

    Returns outputs [B, n, 16, H, d] and the states [B, closed + 1, H, d, d] at the start and after each of the first
    `closed` chunks. With G the running sum of g inside a chunk: (I + A) U = beta (V - (e^G K) S), O = (e^G Q) S +
    tril(Q K^T e^(G_i - G_j)) U, S' = e^G_end S + (e^(G_end - G) K)^T U. Every exponential is a product of e^(G + c)
    and its inverse with the constant c = -8 * bound: both fit fp32 since G lies in (16 * bound, 0). A constant and
    not a row's own G, because a later row must not touch an earlier one.
    """
    batch, chunks, _, heads, packed = grid.shape
    width, streams = (packed - 1) // 4, batch * heads
    half = -bound * TILE / 2
    flat = grid.permute(1, 0, 3, 2, 4).reshape(chunks * streams, TILE, packed).contiguous()
    pair, value, g, beta = flat.split_with_sizes([2 * width, width, width, 1], dim=-1)
    raised = g.cumsum(dim=1).add_(half).exp_()
    lowered = flat.narrow(-1, width, width) / raised
    pairs = (pair.view(-1, TILE, 2, width) * raised.unsqueeze(2)).view(-1, 2 * TILE, width)
    causal, coupling = torch.bmm(pairs, lowered.transpose(1, 2)).view(-1, TILE, 2, TILE).unbind(2)
    parts = (pairs, value, beta, causal.tril(), coupling * beta, lowered.transpose(1, 2), raised[:, -1].unsqueeze(-1))
    by_chunk = zip(*(part.view(chunks, streams, *part.shape[1:]).unbind() for part in parts), strict=True)
    current = state.reshape(streams, width, width)
    outputs, states = [], [current]
    for i, (pair, v, b, within, coupled, keys, end) in enumerate(by_chunk):
        sunk = current * math.exp(-half)
        read_q, read_k = torch.bmm(pair, sunk).view(streams, TILE, 2, width).unbind(2)
        right = (v - read_k).mul_(b)
        update = torch.linalg.solve_triangular(coupled, right, upper=False, unitriangular=True)
        outputs.append(torch.bmm(within, update).add_(read_q))
        if i < max(closed, chunks - 1):
            current = torch.bmm(keys, update).add_(sunk).mul_(end)
            states.append(current)
    out = torch.stack(outputs).view(chunks, batch, heads, TILE, width).permute(1, 0, 3, 2, 4)
    return out, torch.stack(states[: closed + 1]).view(closed + 1, batch, heads, width, width).transpose(0, 1)


def recurrent(packed: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The same law row by row: packed [B, T, H, 4 d + 1], state [B, H, d, d] -> (o [B, T, H, d], state after T).

    Decay the state, read the prediction of v from the decayed state, add the correction, read o from the updated state.
    The runtime never calls this; it is the definition that the chunk form is tested against.
    """
    width = (packed.shape[-1] - 1) // 4
    outputs = []
    for row in packed.unbind(1):
        query, key, value, g, beta = row.split([width, width, width, width, 1], dim=-1)
        state = g.exp().unsqueeze(-1) * state
        update = beta * (value - torch.einsum("bhkv,bhk->bhv", state, key))
        state = state + key.unsqueeze(-1) * update.unsqueeze(-2)
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, query))
    return torch.stack(outputs, dim=1), state
