"""The KDA window in Triton: one kernel from projected rows to the recurrence's output, one for the output projection.

Every row is reached by the same sequence of single steps, so its bits are the same in every window, and a state stored
between two steps changes nothing: a captured step keeps, beside the state at the last chunk boundary, the one where
its last window began (`lead`), and walks again only the rows that were accepted since. The surprise is that few rows
are better walked than solved: a step is a reduction inside one warp, while the chunk form's small products and
triangular solve cost a barrier each. Every program makes its head's rows ready for itself, which is cheaper than a
kernel before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from ling_runtime.config import TILE
from ling_runtime.ops.kda import KdaStaged, kda_window
from ling_runtime.ops.registry import variant
from ling_runtime.ops.triton_kda_out import normed_linear
from ling_runtime.ops.triton_launch import enter, launch, leave

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.memory.window import Window
    from ling_runtime.ops.kda import KdaState, KdaWeights, Linear

VALUE_TILE = 8
"""Columns of the state per program, which is one warp."""
LONGEST = 64
"""Rows up to which a window comes here; longer ones (prefill), and windows of unequal rows, take the reference."""
TAPS = 4
"""The width of the convolution whose window a program keeps in registers."""


@variant("kda_window", "triton", "rounding", "row by row from the chunk's start instead of the chunk form")
def kda_window_triton(
    projected: Tensor,
    window: Window,
    weights: KdaWeights,
    state: KdaState,
    linear: Linear,
    value_tile: int = VALUE_TILE,
) -> tuple[Tensor, KdaStaged]:
    """projected [R, 5 H d + H] holding q|k|v|f|gate|beta -> (rows [R, D] of the output projection, staging)."""
    if window.rows > LONGEST or window.counts is not None or weights.conv.shape[1] != TAPS:
        return kda_window(projected, window, weights, state, linear)
    heads, width = state.state.shape[1:3]
    index = state.index if state.index is not None else torch.arange(window.batch, device=projected.device)
    staged = state.staging or _staging(projected, window, state)
    if state.staging is None:
        staged.states[:, 0] = state.state
    lead, walked = state.lead or (state.state, index)
    starts, value_tile = window.start_index, min(value_tile, width)
    gated = projected.new_empty(projected.shape[0], heads * width)
    squares = torch.empty(projected.shape[0], heads, width // value_tile, dtype=torch.float32, device=projected.device)
    _walk[(width // value_tile, heads, window.batch)](
        projected, weights.conv, weights.gate_scale, weights.gate_bias, weights.o_norm, state.conv, state.ring,
        state.state, lead, walked, index, starts, staged.conv, staged.grid, staged.states, gated, squares, window.rows,
        window.chunks, window.closed_chunks, weights.lower_bound, heads, width, value_tile, TILE,
        state.lead is not None, **launch(), num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
    return normed_linear(gated, squares, weights, window.real_rows), staged


def _staging(projected: Tensor, window: Window, state: KdaState) -> KdaStaged:
    """Fresh staging: what a prefix commit can need, as the reference makes it."""
    batch, heads, width = window.batch, *state.state.shape[1:3]
    conv = projected.new_empty(batch, TAPS - 1 + window.rows, 3 * heads * width)
    grid = state.ring.new_zeros(batch, window.chunks, TILE, heads, 4 * width + 1)
    return KdaStaged(conv, grid, state.state.new_empty(batch, window.closed_chunks + 1, heads, width, width))


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _taps(conv, column):
    at = conv + column * 4
    return tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3)


@triton.jit
def _before(pool, column, C: tl.constexpr):
    """The three committed rows before the window."""
    return tl.load(pool + column), tl.load(pool + C + column), tl.load(pool + 2 * C + column)


@triton.jit
def _stage(staged, column, first, second, third, C: tl.constexpr):
    tl.store(staged + column, first)
    tl.store(staged + C + column, second)
    tl.store(staged + 2 * C + column, third)


@triton.jit
def _convolved(first, second, third, row, taps):
    """silu of the depthwise convolution, rounded as activations are; by division, which no compiler fuses with
    what follows, so that a row in registers has the bits of one that came back from memory.
    """
    total = first.to(tl.float32) * taps[0]
    total += second.to(tl.float32) * taps[1]
    total += third.to(tl.float32) * taps[2]
    total += row.to(tl.float32) * taps[3]
    return (total / (1.0 + tl.exp(-total))).to(row.dtype).to(tl.float32)


@triton.jit
def _row(row, channel, mine, d: tl.constexpr):
    """k, g, v tile and beta of one committed row."""
    return (
        tl.load(row + d + channel),
        tl.load(row + 3 * d + channel),
        tl.load(row + 2 * d + mine),
        tl.load(row + 4 * d),
    )


@triton.jit
def _keep(to, tile, channel, mine, q, k, v, g, beta, d: tl.constexpr):
    """A row into the staged grid, each value tile its own part."""
    tl.store(to + 2 * d + mine, v)
    if tile == 0:
        tl.store(to + channel, q)
        tl.store(to + d + channel, k)
        tl.store(to + 3 * d + channel, g)
        tl.store(to + 4 * d, beta)


@triton.jit
def _new(row, of_head, mine, head, H: tl.constexpr, d: tl.constexpr):
    """q, k, v tile, f, beta and the gate of the tile of one projected row, as they are."""
    return (
        tl.load(row + of_head),
        tl.load(row + H * d + of_head),
        tl.load(row + 2 * H * d + head * d + mine),
        tl.load(row + 3 * H * d + of_head),
        tl.load(row + 5 * H * d + head),
        tl.load(row + 4 * H * d + head * d + mine),
    )


@triton.jit
def _stepped(state, k, g, v, beta):
    """(the decayed state, the update): what both loops do with a row, fused nowhere so that both do the same."""
    state *= tl.exp(g)[None, :]
    return state, (v - tl.sum(state * k[None, :], axis=1)) * beta


@triton.jit(do_not_specialize=["T", "chunks", "closed"])
def _walk(
    projected, conv, scale, bias, norm, pool_conv, pool_ring, pool_state, lead, walked, slots, starts, staged_conv,
    staged_grid, staged_states, out, squares, T, chunks, closed, bound, H: tl.constexpr, d: tl.constexpr,
    BV: tl.constexpr, TM: tl.constexpr, LEAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The recurrence of one head and a tile of value columns, to the gated rows and their parts of the norm.

    Rows are loaded two ahead of the one that is worked on, and everything that can be loaded at the start is, before
    the first store: a store waits for its value, and every load behind it in the program with it. Both readings are of
    the decayed state: o = S'^T q = (decayed S)^T q + (k . q) u, so a step waits for one reduction.
    """
    tile, head, request = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    C: tl.constexpr = 3 * H * d
    P: tl.constexpr = 5 * H * d + H
    W: tl.constexpr = 4 * d + 1
    channel, mine = tl.arange(0, d), tile * BV + tl.arange(0, BV)
    of_head, of_value = head * d + channel, 2 * H * d + head * d + mine
    taps_q, taps_k, taps_v = _taps(conv, of_head), _taps(conv, H * d + of_head), _taps(conv, of_value)
    scale_f, bias_f = tl.load(scale + of_head), tl.load(bias + of_head)
    scale_b, bias_b = tl.load(scale + 2 * H * d + head), tl.load(bias + 2 * H * d + head)
    weight = tl.load(norm + mine)
    enter(PDL)
    slot, start = tl.load(slots + request), tl.load(starts + request)
    offset = (start % TM).to(tl.int32)
    at_pool = slot * (H * d * d) + head * d * d + channel[None, :] * d + mine[:, None]
    at_lead = slot * (H * d * d) + head * d * d + mine[:, None] * d + channel[None, :]
    first = 0
    if LEAD:
        since = tl.load(walked + request) - (start - offset)
        first = tl.maximum(since, 0).to(tl.int32)
        state = tl.load(lead + at_lead) if since >= 0 else tl.load(pool_state + at_pool)
    else:
        state = tl.load(pool_state + at_pool)
    ring = pool_ring + (slot * TM * H + head) * W
    k, g, v, beta = _row(ring + first * (H * W), channel, mine, d)
    k1, g1, v1, beta1 = _row(ring + tl.minimum(first + 1, TM - 1) * (H * W), channel, mine, d)
    source, staged = pool_conv + slot * (3 * C), staged_conv + request * (T + 3) * C
    a0, a1, a2 = _before(source, of_head, C)
    b0, b1, b2 = _before(source, H * d + of_head, C)
    c0, c1, c2 = _before(source, of_value, C)
    row = projected + request * T * P
    next_q, next_k, next_v, next_f, next_b, next_z = _new(row, of_head, mine, head, H, d)
    row1 = row + tl.minimum(1, T - 1) * P
    next1_q, next1_k, next1_v, next1_f, next1_b, next1_z = _new(row1, of_head, mine, head, H, d)
    grid = staged_grid + (request * chunks * TM * H + head) * W
    for place in range(first, offset):
        k2, g2, v2, beta2 = _row(ring + tl.minimum(place + 2, TM - 1) * (H * W), channel, mine, d)
        if not LEAD:
            q = tl.load(ring + place * (H * W) + channel)
            _keep(grid + place * (H * W), tile, channel, mine, q, k, v, g, beta, d)
        state, update = _stepped(state, k, g, v, beta)
        state = tl.fma(update[:, None] + tl.zeros_like(state), k[None, :] + tl.zeros_like(state), state)
        k, g, v, beta = k1, g1, v1, beta1
        k1, g1, v1, beta1 = k2, g2, v2, beta2
    _stage(staged, of_value, c0, c1, c2, C)
    if tile == 0:
        _stage(staged, of_head, a0, a1, a2, C)
        _stage(staged, H * d + of_head, b0, b1, b2, C)
    if LEAD:
        tl.store(lead + at_lead, state)
    for t in range(T):
        new_q, new_k, new_v, f, b, z = next_q, next_k, next_v, next_f, next_b, next_z
        next_q, next_k, next_v, next_f, next_b, next_z = next1_q, next1_k, next1_v, next1_f, next1_b, next1_z
        later = row + tl.minimum(t + 2, T - 1) * P
        next1_q, next1_k, next1_v, next1_f, next1_b, next1_z = _new(later, of_head, mine, head, H, d)
        q, k = _convolved(a0, a1, a2, new_q, taps_q), _convolved(b0, b1, b2, new_k, taps_k)
        v = _convolved(c0, c1, c2, new_v, taps_v)
        a0, a1, a2 = a1, a2, new_q
        b0, b1, b2 = b1, b2, new_k
        c0, c1, c2 = c1, c2, new_v
        q = q * (tl.rsqrt(tl.sum(q * q) + 1e-6) * (d**-0.5))
        k = k * tl.rsqrt(tl.sum(k * k) + 1e-6)
        g = _sigmoid(f.to(tl.float32) * scale_f + bias_f) * bound
        beta = _sigmoid(b.to(tl.float32) * scale_b + bias_b)
        place = offset + t
        state, update = _stepped(state, k, g, v, beta)
        o = tl.sum(state * q[None, :], axis=1) + tl.sum(k * q) * update
        state = tl.fma(update[:, None] + tl.zeros_like(state), k[None, :] + tl.zeros_like(state), state)
        gated = o * weight * _sigmoid(z.to(tl.float32))
        at = request * T + t
        tl.store(out + at * (H * d) + head * d + mine, gated.to(out.dtype.element_ty))
        tl.store(squares + (at * H + head) * (d // BV) + tile, tl.sum(o * o))
        to = staged + (3 + t) * C
        tl.store(to + of_value, new_v)
        if tile == 0:
            tl.store(to + of_head, new_q)
            tl.store(to + H * d + of_head, new_k)
        _keep(grid + place * (H * W), tile, channel, mine, q, k, v, g, beta, d)
        if (place + 1) % TM == 0:
            to_states = staged_states + (request * (closed + 1) + (place + 1) // TM) * (H * d * d)
            tl.store(to_states + head * d * d + channel[None, :] * d + mine[:, None], state)
    leave(PDL)
