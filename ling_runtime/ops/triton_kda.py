"""The KDA window in Triton: rows made ready, the recurrence from the chunk's start, norm and gate.

The state in the pool is the one at the last chunk boundary, as the reference keeps it, and every row is reached from
there by the same sequence of single steps, so its bits are the same in every window; up to 15 committed rows are walked
again. The surprise is that few rows are better walked than solved: a step is one reduction inside one warp, while the
chunk form's small products and triangular solve cost a barrier each (as one kernel it took 44 us a layer on an H200).
"""

from __future__ import annotations

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

VALUE_TILE = 8
"""Columns of the state per program, which is one warp."""
LONGEST = 64
"""Rows up to which a window comes here; longer ones (prefill), and windows of unequal rows, take the reference."""


@variant("kda_window", "triton", "rounding", "row by row from the chunk's start instead of the chunk form")
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
    starts, value_tile = window.start_index, min(value_tile, width)
    _ready[(window.chunks * TILE, heads, window.batch)](
        projected, weights.conv, weights.gate_scale, weights.gate_bias, state.conv, state.ring, index, starts,
        staged.conv, staged.grid, window.rows, weights.lower_bound, heads, width, taps, TILE, **launch(), num_warps=1,
    )  # fmt: skip
    raw = torch.empty(projected.shape[0], heads * width, dtype=torch.float32, device=projected.device)
    _walk[(width // value_tile, heads, window.batch)](
        staged.grid, state.state, index, starts, raw, staged.states, window.rows, window.chunks, window.closed_chunks,
        heads, width, value_tile, TILE, **launch(), num_warps=1,
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
    projected, conv, pool, staged, new, column, T, request, slot, H: tl.constexpr, d: tl.constexpr, TAPS: tl.constexpr
):
    """silu of the depthwise convolution of row `new` at channels `column`, rounded as activations are; stages the row.

    The first row stages the committed rows before it, too.
    """
    C: tl.constexpr = 3 * H * d
    P: tl.constexpr = 5 * H * d + H
    to = staged + request * (T + TAPS - 1) * C + column
    total = tl.zeros((d,), tl.float32)
    for tap in tl.static_range(TAPS):
        source = new - (TAPS - 1) + tap
        row = tl.load(projected + (request * T + source) * P + column, mask=(source >= 0) & (column >= 0), other=0.0)
        old = tl.load(
            pool + (slot * (TAPS - 1) + source + TAPS - 1) * C + column, mask=(source < 0) & (column >= 0), other=0.0
        )
        value = row.to(tl.float32) + old.to(tl.float32)
        total += value * tl.load(conv + column * TAPS + tap)
        keep = (new == 0) | (tap == TAPS - 1)
        tl.store(to + (new + tap) * C, value.to(staged.dtype.element_ty), mask=keep & (column >= 0))
    return (total * _sigmoid(total)).to(projected.dtype.element_ty).to(tl.float32)


@triton.jit(do_not_specialize=["T"])
def _ready(
    projected, conv, scale, bias, pool_conv, pool_ring, slots, starts, staged_conv, staged_grid, T, bound,
    H: tl.constexpr, d: tl.constexpr, TAPS: tl.constexpr, TM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One row of one head at its absolute place: q|k|v|g|beta from the ring where committed, computed where new."""
    enter(PDL)
    place, head, request = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    slot, start = tl.load(slots + request), tl.load(starts + request)
    offset = (start % TM).to(tl.int32)
    new = place - offset
    W: tl.constexpr = 4 * d + 1
    channel = tl.arange(0, d)
    to = staged_grid + ((request * tl.num_programs(0) + place) * H + head) * W
    if new < 0:
        ring = pool_ring + ((slot * TM + place) * H + head) * W
        for part in tl.static_range(4):
            tl.store(to + part * d + channel, tl.load(ring + part * d + channel))
        tl.store(to + 4 * d, tl.load(ring + 4 * d))
    elif new < T:
        of_head = head * d + channel
        q = _convolved(projected, conv, pool_conv, staged_conv, new, of_head, T, request, slot, H, d, TAPS)
        k = _convolved(projected, conv, pool_conv, staged_conv, new, H * d + of_head, T, request, slot, H, d, TAPS)
        v = _convolved(projected, conv, pool_conv, staged_conv, new, 2 * H * d + of_head, T, request, slot, H, d, TAPS)
        row = projected + (request * T + new) * (5 * H * d + H)
        f = tl.load(row + 3 * H * d + of_head).to(tl.float32)
        b = tl.load(row + 5 * H * d + head).to(tl.float32)
        tl.store(to + channel, q * (tl.rsqrt(tl.sum(q * q) + 1e-6) * (d**-0.5)))
        tl.store(to + d + channel, k * tl.rsqrt(tl.sum(k * k) + 1e-6))
        tl.store(to + 2 * d + channel, v)
        tl.store(to + 3 * d + channel, _sigmoid(f * tl.load(scale + of_head) + tl.load(bias + of_head)) * bound)
        at = 2 * H * d + head
        tl.store(to + 4 * d, _sigmoid(b * tl.load(scale + at) + tl.load(bias + at)))
    leave(PDL)


@triton.jit
def _row(row, channel, mine, d: tl.constexpr):
    """k, g, v tile and beta of one row."""
    return (
        tl.load(row + d + channel),
        tl.load(row + 3 * d + channel),
        tl.load(row + 2 * d + mine),
        tl.load(row + 4 * d),
    )


@triton.jit(do_not_specialize=["T", "chunks", "closed"])
def _walk(
    grid, pool_state, slots, starts, raw, staged_states, T, chunks, closed, H: tl.constexpr, d: tl.constexpr,
    BV: tl.constexpr, TM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The recurrence of one head and a tile of value columns; each row is loaded while the one before is worked on.

    Both readings are of the decayed state: o = S'^T q = (decayed S)^T q + (k . q) u, so a step waits for one reduction.
    """
    enter(PDL)
    tile, head, request = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    slot, start = tl.load(slots + request), tl.load(starts + request)
    offset = (start % TM).to(tl.int32)
    W: tl.constexpr = 4 * d + 1
    channel, mine = tl.arange(0, d), tile * BV + tl.arange(0, BV)
    at = head * d * d + channel[:, None] * d + mine[None, :]
    state = tl.load(pool_state + slot * (H * d * d) + at)
    base, step = grid + (request * chunks * TM * H + head) * W, H * W
    k, g, v, beta = _row(base, channel, mine, d)
    for place in range(offset):
        next_k, next_g, next_v, next_beta = _row(base + (place + 1) * step, channel, mine, d)
        state *= tl.exp(g)[:, None]
        update = (v - tl.sum(state * k[:, None], axis=0)) * beta
        state += k[:, None] * update[None, :]
        k, g, v, beta = next_k, next_g, next_v, next_beta
    for place in range(offset, offset + T):
        q = tl.load(base + place * step + channel)
        next_k, next_g, next_v, next_beta = _row(base + tl.minimum(place + 1, offset + T - 1) * step, channel, mine, d)
        state *= tl.exp(g)[:, None]
        update = (v - tl.sum(state * k[:, None], axis=0)) * beta
        out = tl.sum(state * q[:, None], axis=0) + tl.sum(k * q) * update
        state += k[:, None] * update[None, :]
        tl.store(raw + (request * T + place - offset) * (H * d) + head * d + mine, out)
        if (place + 1) % TM == 0:
            tl.store(staged_states + (request * (closed + 1) + (place + 1) // TM) * (H * d * d) + at, state)
        k, g, v, beta = next_k, next_g, next_v, next_beta
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
