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
TOGETHER = 8
"""New rows that are made ready at a time."""
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
        min(TOGETHER, triton.next_power_of_2(window.rows)), state.lead is not None, **launch(), num_warps=1,
        enable_fp_fusion=False,
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
def _convolved(projected, pool, place, live, column, taps, P: tl.constexpr, C: tl.constexpr):
    """(silu of the depthwise convolution of rows `place` [T] at channels `column`, the rows themselves).

    Rounded as activations are; silu by division, which no compiler fuses with what follows, so that a row in registers
    has the bits of one that came back from memory.
    """
    total = tl.zeros((place.shape[0], column.shape[0]), tl.float32)
    for tap in tl.static_range(4):
        source = place[:, None] - 3 + tap
        new = tl.load(projected + source * P + column[None, :], mask=live[:, None] & (source >= 0), other=0.0)
        old = tl.load(pool + (source + 3) * C + column[None, :], mask=live[:, None] & (source < 0), other=0.0)
        value = tl.where(source < 0, old, new)
        total += value.to(tl.float32) * taps[tap][None, :]
    return (total / (1.0 + tl.exp(-total))).to(value.dtype).to(tl.float32), value


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
def _keep(to, channel, mine, k, g, v, beta, q, tile, d: tl.constexpr):
    """A committed row into the staged grid, each value tile its own part."""
    tl.store(to + 2 * d + mine, v)
    if tile == 0:
        tl.store(to + channel, q)
        tl.store(to + d + channel, k)
        tl.store(to + 3 * d + channel, g)
        tl.store(to + 4 * d, beta)


@triton.jit
def _opened(at_row, at, live, head, of_head, mine, H: tl.constexpr, d: tl.constexpr):
    """f, the gate of the value tile and beta of rows, before their sigmoids."""
    f = tl.load(at_row + 3 * H * d + of_head[None, :], mask=live[:, None], other=0.0)
    z = tl.load(at_row + 4 * H * d + (head * d + mine)[None, :], mask=live[:, None], other=0.0)
    b = tl.load(at + 5 * H * d + head, mask=live, other=0.0)
    return f.to(tl.float32), z.to(tl.float32), b.to(tl.float32)


@triton.jit
def _pick(rows, place, i: tl.constexpr):
    """Row i of a tile, which every thread has in its registers."""
    return tl.sum(tl.where(place[:, None] == i, rows, 0.0), axis=0)


@triton.jit
def _stepped(state, k, decay, v, beta):
    """(the decayed state, the update): what both loops do with a row, fused nowhere so that both do the same."""
    state *= decay[None, :]
    return state, (v - tl.sum(state * k[None, :], axis=1)) * beta


@triton.jit
def _add(state, update, k):
    return tl.fma(update[:, None] + tl.zeros_like(state), k[None, :] + tl.zeros_like(state), state)


@triton.jit
def _walked(
    state, ring, grid, first, end, tile, channel, mine, STEP: tl.constexpr, d: tl.constexpr, TM: tl.constexpr,
    KEEP: tl.constexpr,
):  # fmt: skip
    """The state after committed rows `first` to `end`, each loaded two ahead of the one that is worked on."""
    k, g, v, beta = _row(ring + first * STEP, channel, mine, d)
    k1, g1, v1, beta1 = _row(ring + tl.minimum(first + 1, TM - 1) * STEP, channel, mine, d)
    for place in range(first, end):
        k2, g2, v2, beta2 = _row(ring + tl.minimum(place + 2, TM - 1) * STEP, channel, mine, d)
        if KEEP:
            _keep(grid + place * STEP, channel, mine, k, g, v, beta, tl.load(ring + place * STEP + channel), tile, d)
        state, update = _stepped(state, k, tl.exp(g), v, beta)
        state = _add(state, update, k)
        k, g, v, beta = k1, g1, v1, beta1
        k1, g1, v1, beta1 = k2, g2, v2, beta2
    return state


@triton.jit
def _advanced(
    state, qs, ks, vs, decays, betas, count, place, to_states, H: tl.constexpr, d: tl.constexpr, BV: tl.constexpr,
    TM: tl.constexpr, TP: tl.constexpr,
):  # fmt: skip
    """(the state after the first `count` of TP rows, their outputs [TP, BV]); states at ends of chunks are staged.

    Both readings are of the decayed state: o = S'^T q = (decayed S)^T q + (k . q) u, so a step waits for one reduction.
    """
    some, channel, value = tl.arange(0, TP), tl.arange(0, d), tl.arange(0, BV)
    outs = tl.zeros((TP, BV), tl.float32)
    for i in tl.static_range(TP):
        if i < count:
            q, k, v = _pick(qs, some, i), _pick(ks, some, i), _pick(vs, some, i)
            beta = tl.sum(tl.where(some == i, betas, 0.0))
            state, update = _stepped(state, k, _pick(decays, some, i), v, beta)
            o = tl.sum(state * q[None, :], axis=1) + tl.sum(k * q) * update
            state = _add(state, update, k)
            outs = tl.where(some[:, None] == i, o[None, :], outs)
            closing = place + i + 1
            if closing % TM == 0:
                tl.store(to_states + closing // TM * (H * d * d) + channel[None, :] * d + value[:, None], state)
    return state, outs


@triton.jit(do_not_specialize=["T", "chunks", "closed"])
def _walk(
    projected, conv, scale, bias, norm, pool_conv, pool_ring, pool_state, lead, walked, slots, starts, staged_conv,
    staged_grid, staged_states, out, squares, T, chunks, closed, bound, H: tl.constexpr, d: tl.constexpr,
    BV: tl.constexpr, TM: tl.constexpr, TP: tl.constexpr, LEAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The recurrence of one head and a tile of value columns, to the gated rows and their parts of the norm.

    New rows are made ready TP at a time, so that the chain from row to row holds nothing but the state. Loads come
    before the first store: a store waits for its value, and every load behind it in the program with it.
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
    source, staged = pool_conv + slot * (3 * C), staged_conv + request * (T + 3) * C
    ring, grid = pool_ring + (slot * TM * H + head) * W, staged_grid + (request * chunks * TM * H + head) * W
    a0, a1, a2 = _before(source, of_head, C)
    b0, b1, b2 = _before(source, H * d + of_head, C)
    c0, c1, c2 = _before(source, of_value, C)
    state = _walked(state, ring, grid, first, offset, tile, channel, mine, H * W, d, TM, not LEAD)
    if LEAD:
        tl.store(lead + at_lead, state)
    row = projected + request * T * P
    to_states = staged_states + request * (closed + 1) * (H * d * d) + head * d * d + tile * BV
    for block in range(0, T, TP):
        place = block + tl.arange(0, TP)
        live = place < T
        known = live[:, None]
        qs, raw_q = _convolved(row, source, place, live, of_head, taps_q, P, C)
        ks, raw_k = _convolved(row, source, place, live, H * d + of_head, taps_k, P, C)
        vs, raw_v = _convolved(row, source, place, live, of_value, taps_v, P, C)
        f, z, b = _opened(row + place[:, None] * P, row + place * P, live, head, of_head, mine, H, d)
        gs, betas = _sigmoid(f * scale_f[None, :] + bias_f[None, :]) * bound, _sigmoid(b * scale_b + bias_b)
        qs = qs * (tl.rsqrt(tl.sum(qs * qs, axis=1) + 1e-6) * (d**-0.5))[:, None]
        ks = ks * tl.rsqrt(tl.sum(ks * ks, axis=1) + 1e-6)[:, None]
        state, outs = _advanced(
            state, qs, ks, vs, tl.exp(gs), betas, T - block, offset + block, to_states, H, d, BV, TM, TP
        )
        gated = (outs * weight[None, :] * _sigmoid(z)).to(out.dtype.element_ty)
        at = request * T + place
        tl.store(out + at[:, None] * (H * d) + (head * d + mine)[None, :], gated, mask=known)
        tl.store(squares + (at * H + head) * (d // BV) + tile, tl.sum(outs * outs, axis=1), mask=live)
        to, kept = staged + (3 + place[:, None]) * C, grid + (offset + place[:, None]) * (H * W)
        tl.store(to + of_value[None, :], raw_v, mask=known)
        tl.store(kept + 2 * d + mine[None, :], vs, mask=known)
        if tile == 0:
            tl.store(to + of_head[None, :], raw_q, mask=known)
            tl.store(to + H * d + of_head[None, :], raw_k, mask=known)
            tl.store(kept + channel[None, :], qs, mask=known)
            tl.store(kept + d + channel[None, :], ks, mask=known)
            tl.store(kept + 3 * d + channel[None, :], gs, mask=known)
            tl.store(grid + (offset + place) * (H * W) + 4 * d, betas, mask=live)
    _stage(staged, of_value, c0, c1, c2, C)
    if tile == 0:
        _stage(staged, of_head, a0, a1, a2, C)
        _stage(staged, H * d + of_head, b0, b1, b2, C)
    leave(PDL)
