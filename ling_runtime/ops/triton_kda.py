"""The KDA window in Triton: convolution, gates and the chunk form in one kernel, norm and gate in a second.

Same numerics class as the reference: 16-row chunks at absolute positions, recomputed from the state at their boundary,
so a row's bits are the same in every window. A program owns one head and a tile of value columns; queries, keys and
decays are convolved again by every tile of a head, which is cheaper than a launch to share them. The surprise: the
kernel only reads the committed state, through slot numbers on the device, so a captured graph follows any request.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from ling_runtime.config import TILE
from ling_runtime.ops.kda import KdaStaged, kda_window
from ling_runtime.ops.registry import variant
from ling_runtime.ops.triton_launch import enter, launch, leave

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.memory.window import Window
    from ling_runtime.ops.kda import KdaState, KdaWeights

VALUE_TILE = 16
"""Columns of the state per program."""
LONGEST = 64
"""Rows up to which a window is fused; longer ones (prefill), and windows of unequal rows, take the reference."""


@variant("kda_window", "triton", "rounding", "sums over channels in another order")
def kda_window_triton(
    projected: Tensor, window: Window, weights: KdaWeights, state: KdaState, value_tile: int = VALUE_TILE
) -> tuple[Tensor, KdaStaged]:
    """projected [R, 5 H d + H] holding q|k|v|f|gate|beta -> (o [R, H d] gated and normed, staging)."""
    if window.rows > LONGEST or window.counts is not None:
        return kda_window(projected, window, weights, state)
    heads, width = state.state.shape[1:3]
    taps = weights.conv.shape[1]
    index = state.index if state.index is not None else torch.arange(window.batch, device=projected.device)
    staged = state.staging or _staging(projected, window, state, taps)
    if state.staging is None:
        staged.states[:, 0] = state.state
    raw = torch.empty(projected.shape[0], heads * width, dtype=torch.float32, device=projected.device)
    value_tile = min(value_tile, width)
    _window[(width // value_tile, heads, window.batch)](
        projected, weights.conv, weights.gate_scale, weights.gate_bias, state.conv, state.ring, state.state, index,
        window.start_index, raw, staged.conv, staged.grid, staged.states, window.rows, window.chunks,
        window.closed_chunks, weights.lower_bound, math.exp(-weights.lower_bound * TILE / 2), heads, width,
        value_tile, taps, TILE, "ieee" if projected.dtype == torch.float32 else "tf32x3", **launch(), num_warps=4,
    )  # fmt: skip
    out = torch.empty_like(raw, dtype=projected.dtype)
    _gated_norm[(projected.shape[0], heads)](
        raw, projected, weights.o_norm, out, window.real_rows, weights.eps, heads, width, **launch(), num_warps=1
    )
    return out, staged


def _staging(projected: Tensor, window: Window, state: KdaState, taps: int) -> KdaStaged:
    """Fresh staging: what a prefix commit can need, as the reference makes it."""
    batch, heads, width = window.batch, *state.state.shape[1:3]
    conv = projected.new_empty(batch, taps - 1 + window.rows, 3 * heads * width)
    grid = state.ring.new_zeros(batch, window.chunks, TILE, heads, 4 * width + 1)
    return KdaStaged(conv, grid, state.state.new_empty(batch, window.closed_chunks + 1, heads, width, width))


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _convolved(
    projected, conv, pool, staged, new, live, column, T, request, slot, keep, H: tl.constexpr, d: tl.constexpr,
    TAPS: tl.constexpr,
):  # fmt: skip
    """silu of the depthwise convolution at rows `new` (where `live`) and channels `column`, rounded as activations are.

    The raw rows go to staging where `keep`.
    """
    C: tl.constexpr = 3 * H * d
    P: tl.constexpr = 5 * H * d + H
    total = tl.zeros((new.shape[0], column.shape[0]), tl.float32)
    for tap in tl.static_range(TAPS):
        source = new - (TAPS - 1) + tap
        fresh = live & (source >= 0)
        past = live & (source < 0)
        row = tl.load(projected + (request * T + source[:, None]) * P + column[None, :], mask=fresh[:, None], other=0.0)
        old = tl.load(
            pool + (slot * (TAPS - 1) + source[:, None] + TAPS - 1) * C + column[None, :],
            mask=past[:, None],
            other=0.0,
        )
        value = row.to(tl.float32) + old.to(tl.float32)
        total += value * tl.load(conv + column * TAPS + tap)[None, :]
        if tap == TAPS - 1:
            to = staged + (request * (T + TAPS - 1) + new[:, None] + TAPS - 1) * C + column[None, :]
            tl.store(to, row, mask=(live & keep)[:, None])
    for i in tl.static_range(TAPS - 1):
        old = tl.load(pool + (slot * (TAPS - 1) + i) * C + column)
        tl.store(staged + (request * (T + TAPS - 1) + i) * C + column, old, mask=(column >= 0) & keep)
    return (total * _sigmoid(total)).to(projected.dtype.element_ty).to(tl.float32)


@triton.jit
def _unit(x):
    return x * tl.rsqrt(tl.sum(x * x, axis=1) + 1e-6)[:, None]


@triton.jit
def _solve(coupling, right, TM: tl.constexpr):
    """U of (I + A) U = right, A strictly lower [TM, TM]: eliminate column by column."""
    place = tl.arange(0, TM)
    for i in tl.static_range(TM - 1):
        column = tl.sum(tl.where(place[None, :] == i, coupling, 0.0), axis=1)
        row = tl.sum(tl.where(place[:, None] == i, right, 0.0), axis=0)
        right -= column[:, None] * row[None, :]
    return right


@triton.jit
def _chunk(query, key, value, g, beta, state, half, TM: tl.constexpr, PRECISION: tl.constexpr):
    """(outputs [TM, BV], state after the chunk) of the reference's chunk form; `half` is exp(-8 * bound)."""
    place = tl.arange(0, TM)
    raised = tl.exp(tl.cumsum(g, axis=0)) * half
    lowered = key / raised
    query, key = query * raised, key * raised
    causal = tl.dot(query, tl.trans(lowered), input_precision=PRECISION)
    causal = tl.where(place[:, None] >= place[None, :], causal, 0.0)
    coupling = tl.dot(key, tl.trans(lowered), input_precision=PRECISION) * beta[:, None]
    coupling = tl.where(place[:, None] > place[None, :], coupling, 0.0)
    sunk = state / half
    right = (value - tl.dot(key, sunk, input_precision=PRECISION)) * beta[:, None]
    update = _solve(coupling, right, TM)
    out = tl.dot(query, sunk, input_precision=PRECISION) + tl.dot(causal, update, input_precision=PRECISION)
    end = tl.sum(tl.where(place[:, None] == TM - 1, raised, 0.0), axis=0)
    return out, (tl.dot(tl.trans(lowered), update, input_precision=PRECISION) + sunk) * end[:, None]


@triton.jit
def _kept_rows(ring, old, channel, mine, d: tl.constexpr):
    """q, k, v tile, g and beta of the open chunk's committed rows, zero elsewhere; `ring` points at each row."""
    query = tl.load(ring[:, None] + channel[None, :], mask=old[:, None], other=0.0)
    key = tl.load(ring[:, None] + d + channel[None, :], mask=old[:, None], other=0.0)
    value = tl.load(ring[:, None] + 2 * d + mine[None, :], mask=old[:, None], other=0.0)
    g = tl.load(ring[:, None] + 3 * d + channel[None, :], mask=old[:, None], other=0.0)
    return query, key, value, g, tl.load(ring + 4 * d, mask=old, other=0.0)


@triton.jit
def _gates(row, live, scale, bias, bound, head, H: tl.constexpr, d: tl.constexpr):
    """Log decays [TM, d] and beta [TM] of the new rows; `row` points at each projected row."""
    channel = head * d + tl.arange(0, d)
    f = tl.load(row[:, None] + 3 * H * d + channel[None, :], mask=live[:, None], other=0.0).to(tl.float32)
    g = _sigmoid(f * tl.load(scale + channel)[None, :] + tl.load(bias + channel)[None, :]) * bound
    b = tl.load(row + 5 * H * d + head, mask=live, other=0.0).to(tl.float32)
    return g, _sigmoid(b * tl.load(scale + 2 * H * d + head) + tl.load(bias + 2 * H * d + head))


@triton.jit
def _keep_rows(grid, query, key, value, g, beta, known, first, channel, mine, d: tl.constexpr):
    """Stage the chunk's rows; `grid` points at each. Values by every tile, the rest by the first of a head."""
    tl.store(grid[:, None] + channel[None, :], query, mask=known[:, None] & first)
    tl.store(grid[:, None] + d + channel[None, :], key, mask=known[:, None] & first)
    tl.store(grid[:, None] + 2 * d + mine[None, :], value, mask=known[:, None])
    tl.store(grid[:, None] + 3 * d + channel[None, :], g, mask=known[:, None] & first)
    tl.store(grid + 4 * d, beta, mask=known & first)


@triton.jit(do_not_specialize=["T", "chunks", "closed"])
def _window(
    projected, conv, scale, bias, pool_conv, pool_ring, pool_state, slots, starts, raw, staged_conv, staged_grid,
    staged_states, T, chunks, closed, bound, half, H: tl.constexpr, d: tl.constexpr, BV: tl.constexpr,
    TAPS: tl.constexpr, TM: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    enter(PDL)
    tile, head, request = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    slot, start = tl.load(slots + request), tl.load(starts + request)
    offset, first = (start % TM).to(tl.int32), tile == 0
    W: tl.constexpr = 4 * d + 1
    P: tl.constexpr = 5 * H * d + H
    channel, mine, place = tl.arange(0, d), tile * BV + tl.arange(0, BV), tl.arange(0, TM)
    of_head = head * d + channel
    state_at = head * d * d + channel[:, None] * d + mine[None, :]
    state = tl.load(pool_state + slot * (H * d * d) + state_at)
    for chunk in range((offset + T + TM - 1) // TM):
        new = chunk * TM + place - offset
        old, live = new < 0, (new >= 0) & (new < T)
        ring = pool_ring + ((slot * TM + place) * H + head) * W
        query, key, value, g, beta = _kept_rows(ring, old, channel, mine, d)
        q = _convolved(projected, conv, pool_conv, staged_conv, new, live, of_head, T, request, slot, first, H, d, TAPS)
        k = _convolved(
            projected, conv, pool_conv, staged_conv, new, live, H * d + of_head, T, request, slot, first, H, d, TAPS
        )
        v = _convolved(
            projected, conv, pool_conv, staged_conv, new, live, (2 * H + head) * d + mine, T, request, slot, True, H,
            d, TAPS,
        )  # fmt: skip
        row = projected + (request * T + new) * P
        new_g, new_beta = _gates(row, live, scale, bias, bound, head, H, d)
        query = tl.where(live[:, None], _unit(q) * (d**-0.5), query)
        key = tl.where(live[:, None], _unit(k), key)
        value, g = tl.where(live[:, None], v, value), tl.where(live[:, None], new_g, g)
        beta = tl.where(live, new_beta, beta)
        out, state = _chunk(query, key, value, g, beta, state, half, TM, PRECISION)
        to = raw + (request * T + new[:, None]) * (H * d) + head * d + mine[None, :]
        tl.store(to, out, mask=live[:, None])
        grid = staged_grid + (((request * chunks + chunk) * TM + place) * H + head) * W
        _keep_rows(grid, query, key, value, g, beta, old | live, first, channel, mine, d)
        to = staged_states + (request * (closed + 1) + chunk + 1) * (H * d * d) + state_at
        tl.store(to, state, mask=(channel[:, None] >= 0) & ((chunk + 1) * TM <= offset + T))
    leave(PDL)


@triton.jit
def _gated_norm(raw, projected, weight, out, rows, eps, H: tl.constexpr, d: tl.constexpr, PDL: tl.constexpr):
    """RMS norm of one head's row, times weight and sigmoid gate; zero in padded rows."""
    enter(PDL)
    row, head = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, d)
    at = row * (H * d) + head * d + channel
    value = tl.zeros((d,), tl.float32)
    if row < rows:
        o = tl.load(raw + at)
        gate = tl.load(projected + row * (5 * H * d + H) + 4 * H * d + head * d + channel).to(tl.float32)
        value = o * tl.rsqrt(tl.sum(o * o) / d + eps) * tl.load(weight + channel).to(tl.float32) * _sigmoid(gate)
    tl.store(out + at, value.to(out.dtype.element_ty))
    leave(PDL)
