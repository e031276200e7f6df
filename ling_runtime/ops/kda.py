"""Kimi delta attention over a window of rows, from the committed state, without writing it.

Rows are laid on a grid of 16-row chunks at absolute positions and every chunk is computed in the chunk form from the
state at its boundary. The surprise is what that buys: a row meets the same operands at the same place of the same
shapes whether it arrives by prefill, by plain decoding or as the fifth row of a verify window, so its bits are the
same in all three, with no loop over rows. The price is that up to 15 committed rows are kept per request and computed
again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from ling_runtime.config import TILE
from ling_runtime.ops.linear import pad_rows
from ling_runtime.ops.norm import gated_rms_norm, l2_norm, widen
from ling_runtime.ops.registry import variant

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.memory.window import Window


@dataclass(frozen=True, kw_only=True)
class KdaWeights:
    """What one KDA layer needs besides its projections; H heads of width d, C = 3 H d channels q|k|v."""

    conv: Tensor  # [C, kernel] fp32; the last tap multiplies the current row
    decay: Tensor  # [H, 1] = exp(A_log), fp32
    dt_bias: Tensor  # [H, d] fp32
    o_norm: Tensor  # [d]
    lower_bound: float
    eps: float


@dataclass(frozen=True)
class KdaState:
    """Committed state of B requests at their chunk boundary, and the rows since."""

    conv: Tensor  # [B, kernel - 1, C] raw rows before the convolution, oldest first
    ring: Tensor  # [B, 16, H, 4 d + 1] rows q|k|v|g|beta since the boundary
    state: Tensor  # [B, H, d, d] keys by values


@dataclass(frozen=True)
class KdaStaged:
    """What a commit of any prefix of the window can need."""

    conv: Tensor  # [B, kernel - 1 + T, C]
    grid: Tensor  # [B, chunks, 16, H, 4 d + 1]
    states: Tensor  # [B, closed chunks + 1, H, d, d]: at the boundary, then after each chunk the window can fill


@variant("kda_window")
def kda_window(projected: Tensor, window: Window, weights: KdaWeights, state: KdaState) -> tuple[Tensor, KdaStaged]:
    """projected [R, 5 H d + H] holding q|k|v|f|g|beta -> (o [R, H d] gated and normed, staging)."""
    heads, width = weights.dt_bias.shape
    rows = projected[: window.batch * window.rows].view(window.batch, window.rows, -1)
    raw, f, gate, b = rows.split([3 * heads * width, heads * width, heads * width, heads], dim=-1)
    conv = torch.cat([state.conv, raw], dim=1)
    mixed = widen(short_conv(conv, weights.conv).to(projected.dtype)).unflatten(-1, (3, heads, width))
    packed = pack_rows(mixed, f.unflatten(-1, (heads, width)), b, weights)
    grid = window.to_grid(state.ring, packed)
    out, states = chunked(grid, state.state, bound=weights.lower_bound, closed=window.closed_chunks)
    o = window.from_grid(out)
    normed = gated_rms_norm(o, gate.unflatten(-1, (heads, width)), weights.o_norm, weights.eps)
    return pad_rows(normed.to(projected.dtype).view(-1, heads * width)), KdaStaged(conv, grid, states)


def short_conv(source: Tensor, weight: Tensor) -> Tensor:
    """Causal depthwise convolution of source [B, K - 1 + T, C] with weight [C, K], then silu -> [B, T, C]."""
    taps = weight.shape[1]
    rows = source.shape[1] - taps + 1
    wide = widen(source)
    total = wide[:, :rows] * weight[:, 0]
    for tap in range(1, taps):
        total = total + wide[:, tap : tap + rows] * weight[:, tap]
    return F.silu(total)


def pack_rows(mixed: Tensor, f: Tensor, b: Tensor, weights: KdaWeights) -> Tensor:
    """One row per token, [B, T, H, 4 d + 1] = q|k|v|g|beta: everything of the token that later rows can need.

    mixed [B, T, 3, H, d] is the convolved q, k, v. g = bound * sigmoid(exp(A_log) * (f + dt_bias)) is the log decay of
    the safe gate; it lies in (bound, 0) and has no minus sign before exp(A_log).
    """
    query, key = l2_norm(mixed[:, :, :2]).unbind(2)
    g = weights.lower_bound * torch.sigmoid(weights.decay * (widen(f) + weights.dt_bias))
    beta = torch.sigmoid(widen(b)).unsqueeze(-1)
    return torch.cat([query * key.shape[-1] ** -0.5, key, mixed[:, :, 2], g, beta], dim=-1)


def chunked(grid: Tensor, state: Tensor, *, bound: float, closed: int) -> tuple[Tensor, Tensor]:
    """The chunk form over grid [B, n, 16, H, 4 d + 1] from state [B, H, d, d].

    Returns outputs [B, n, 16, H, d] and the states [B, closed + 1, H, d, d] at the start and after each of the first
    `closed` chunks. With G the running sum of g inside a chunk: (I + A) U = beta (V - (e^G K) S), O = (e^G Q) S +
    tril(Q K^T e^(G_i - G_j)) U, S' = e^G_end S + (e^(G_end - G) K)^T U. The factors of e^(G_i - G_j) are taken around
    the constant 8 * bound, which fits fp32, and not around a row: later rows must not touch earlier ones.
    """
    batch, chunks, _, heads, packed = grid.shape
    width = (packed - 1) // 4
    flat = grid.permute(0, 3, 1, 2, 4).reshape(batch * heads, chunks, TILE, packed)
    query, key, value, g, beta = flat.split([width, width, width, width, 1], dim=-1)
    total = g.cumsum(dim=2)
    decayed, end = total.exp(), total[:, :, -1:]
    half = -bound * TILE / 2
    spread, gathered = (total + half).exp(), (-half - total).exp()
    keys_in, keys_out = key * spread, (key * gathered).transpose(2, 3)
    coupling = beta * (keys_in @ keys_out)
    causal = ((query * spread) @ keys_out).tril()
    query_state, key_state, key_end = query * decayed, key * decayed, (key * (end - total).exp()).transpose(2, 3)
    end_decay = end.exp().transpose(2, 3)
    current = state.reshape(batch * heads, width, width)
    outputs, states = [], [current]
    for i in range(chunks):
        right = beta[:, i] * (value[:, i] - key_state[:, i] @ current)
        update = torch.linalg.solve_triangular(coupling[:, i], right, upper=False, unitriangular=True)
        outputs.append(query_state[:, i] @ current + causal[:, i] @ update)
        if i < max(closed, chunks - 1):
            current = end_decay[:, i] * current + key_end[:, i] @ update
            states.append(current)
    out = torch.stack(outputs, dim=1).view(batch, heads, chunks, TILE, width).permute(0, 2, 3, 1, 4)
    return out, torch.stack(states[: closed + 1], dim=1).view(batch, heads, closed + 1, width, width).transpose(1, 2)


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
