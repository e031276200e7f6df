"""The walk of the KDA recurrence in Triton: one warp carries a head's state, a tile of value columns, row by row.

Everything that a row needs is asked for two rows ahead: a load behind a store waits for what is stored, and a value
that is used by the row that loads it costs every row a trip to the cache. Sums are in one order whatever the window.
What the rows committed since the last window make of the state depends on no layer of this step, so a captured step
works it out before its wait.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ling_runtime.ops.triton.kda_rows import before, convolved, normed, sigmoid, stage, taps
from ling_runtime.ops.triton.launch import WRITTEN, enter, leave


@triton.jit
def _row(row, channel, mine, d: tl.constexpr, FROM: tl.constexpr):
    """k, g, v tile, beta and q of one row that is ready; `FROM` is a modifier of the loads."""
    return (
        tl.load(row + d + channel, cache_modifier=FROM),
        tl.load(row + 3 * d + channel, cache_modifier=FROM),
        tl.load(row + 2 * d + mine, cache_modifier=FROM),
        tl.load(row + 4 * d, cache_modifier=FROM),
        tl.load(row + channel, cache_modifier=FROM),
    )


@triton.jit
def _keep(to, tile, channel, mine, k, g, v, beta, q, d: tl.constexpr):
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
    """(the decayed state, the update)."""
    state *= tl.exp(g)[None, :]
    return state, (v - tl.sum(state * k[None, :], axis=1)) * beta


@triton.jit
def _added(state, update, k):
    return tl.fma(update[:, None] + tl.zeros_like(state), k[None, :] + tl.zeros_like(state), state)


@triton.jit
def _committed(
    state, ring, grid, first, end, tile, channel, mine, STEP: tl.constexpr, d: tl.constexpr, TM: tl.constexpr,
    KEEP: tl.constexpr,
):  # fmt: skip
    """The state after committed rows `first` to `end`, each loaded two ahead of the one that is worked on."""
    k, g, v, beta, q = _row(ring + first * STEP, channel, mine, d, WRITTEN)
    k1, g1, v1, beta1, q1 = _row(ring + tl.minimum(first + 1, TM - 1) * STEP, channel, mine, d, WRITTEN)
    for place in range(first, end):
        k2, g2, v2, beta2, q2 = _row(ring + tl.minimum(place + 2, TM - 1) * STEP, channel, mine, d, WRITTEN)
        if KEEP:
            _keep(grid + place * STEP, tile, channel, mine, k, g, v, beta, q, d)
        state, update = _stepped(state, k, g, v, beta)
        state = _added(state, update, k)
        k, g, v, beta, q = k1, g1, v1, beta1, q1
        k1, g1, v1, beta1, q1 = k2, g2, v2, beta2, q2
    return state


@triton.jit
def _read(
    state, k, g, v, beta, q, dot, z, weight, out, squares, place, to_states, channel, value, H: tl.constexpr,
    d: tl.constexpr, TM: tl.constexpr,
):  # fmt: skip
    """The state after a new row; its gated output and its part of the norm are stored, and the end of a chunk.

    Both readings are of the decayed state: o = S'^T q = (decayed S)^T q + (k . q) u, so a step waits for one reduction.
    `dot`, k . q, comes from where k and q were made: Triton sums values as they lie, and loaded they lie otherwise.
    """
    state, update = _stepped(state, k, g, v, beta)
    o = tl.sum(state * q[None, :], axis=1) + dot * update
    state = _added(state, update, k)
    tl.store(out + value, (o * weight * sigmoid(z.to(tl.float32))).to(out.dtype.element_ty))
    tl.store(squares, tl.sum(o * o))
    if (place + 1) % TM == 0:
        tl.store(to_states + (place + 1) // TM * (H * d * d) + channel[None, :] * d + value[:, None], state)
    return state


@triton.jit
def _walk_alone(
    state, projected, taps_q, taps_k, taps_v, scale_f, bias_f, scale_b, bias_b, before_q, before_k, before_v, fresh,
    staged, grid, out, squares, to_states, weight, T, offset, tile, head, bound, H: tl.constexpr, d: tl.constexpr,
    BV: tl.constexpr, TM: tl.constexpr,
):  # fmt: skip
    """New rows made ready here, by every value tile for itself; `fresh` is the first."""
    C: tl.constexpr = 3 * H * d
    P: tl.constexpr = 5 * H * d + H
    channel, value = tl.arange(0, d), tl.arange(0, BV)
    mine = tile * BV + value
    of_head, of_value = head * d + channel, 2 * H * d + head * d + mine
    a0, a1, a2 = before_q[0], before_q[1], before_q[2]
    b0, b1, b2 = before_k[0], before_k[1], before_k[2]
    c0, c1, c2 = before_v[0], before_v[1], before_v[2]
    stage(staged, of_value, c0, c1, c2, C)
    if tile == 0:
        stage(staged, of_head, a0, a1, a2, C)
        stage(staged, H * d + of_head, b0, b1, b2, C)
    next_q, next_k, next_v, next_f, next_b, next_z = fresh[0], fresh[1], fresh[2], fresh[3], fresh[4], fresh[5]
    for t in range(T):
        new_q, new_k, new_v, f, b, z = next_q, next_k, next_v, next_f, next_b, next_z
        later = projected + tl.minimum(t + 1, T - 1) * P
        next_q, next_k, next_v, next_f, next_b, next_z = _new(later, of_head, mine, head, H, d)
        q, k = convolved(a0, a1, a2, new_q, taps_q), convolved(b0, b1, b2, new_k, taps_k)
        v = convolved(c0, c1, c2, new_v, taps_v)
        a0, a1, a2 = a1, a2, new_q
        b0, b1, b2 = b1, b2, new_k
        c0, c1, c2 = c1, c2, new_v
        q, k, g, beta, dot = normed(q, k, f, b, scale_f, bias_f, scale_b, bias_b, bound, d)
        state = _read(
            state, k, g, v, beta, q, dot, z, weight, out + t * H * d, squares + t * H * (d // BV), offset + t,
            to_states, channel, value, H, d, TM,
        )  # fmt: skip
        to = staged + (3 + t) * C
        tl.store(to + of_value, new_v)
        if tile == 0:
            tl.store(to + of_head, new_q)
            tl.store(to + H * d + of_head, new_k)
        _keep(grid + (offset + t) * H * (4 * d + 1), tile, channel, mine, k, g, v, beta, q, d)
    return state


@triton.jit
def _ready_row(grid, gates, dots, t, T, channel, mine, H: tl.constexpr, d: tl.constexpr):
    """Row t of the window, or its last one: k, g, v tile, beta and q, and the tile's gate and k . q."""
    t = tl.minimum(t, T - 1)
    k, g, v, beta, q = _row(grid + t * (H * (4 * d + 1)), channel, mine, d, "")
    return k, g, v, beta, q, tl.load(gates + t * (5 * H * d + H)), tl.load(dots + t * H)


@triton.jit
def _walk_ready(
    state, grid, gates, dots, weight, out, squares, to_states, T, offset, channel, mine, value, H: tl.constexpr,
    d: tl.constexpr, BV: tl.constexpr, TM: tl.constexpr,
):  # fmt: skip
    """New rows that are ready, each loaded two ahead of the one that is worked on."""
    k, g, v, beta, q, z, dot = _ready_row(grid, gates, dots, 0, T, channel, mine, H, d)
    k1, g1, v1, beta1, q1, z1, dot1 = _ready_row(grid, gates, dots, 1, T, channel, mine, H, d)
    for t in range(T):
        k2, g2, v2, beta2, q2, z2, dot2 = _ready_row(grid, gates, dots, t + 2, T, channel, mine, H, d)
        state = _read(
            state, k, g, v, beta, q, dot, z, weight, out + t * H * d, squares + t * H * (d // BV), offset + t,
            to_states, channel, value, H, d, TM,
        )  # fmt: skip
        k, g, v, beta, q, z, dot = k1, g1, v1, beta1, q1, z1, dot1
        k1, g1, v1, beta1, q1, z1, dot1 = k2, g2, v2, beta2, q2, z2, dot2
    return state


@triton.jit
def _raw_before(pool, of_head, of_value, H: tl.constexpr, d: tl.constexpr):
    """Of q, k and the v tile, the three committed rows before the window."""
    C: tl.constexpr = 3 * H * d
    return before(pool, of_head, C), before(pool, H * d + of_head, C), before(pool, of_value, C)


@triton.jit
def _nearest(at_lead, at_pool, since):
    """(the state to start from, its place in the chunk): the lead, or where there is none the chunk's own."""
    state = tl.load(at_lead, cache_modifier=WRITTEN) if since >= 0 else tl.load(at_pool, cache_modifier=WRITTEN)
    return state, tl.maximum(since, 0).to(tl.int32)


@triton.jit(do_not_specialize=["T", "chunks", "closed"])
def walk(
    projected, conv, scale, bias, norm, pool_conv, pool_ring, pool_state, lead, walked, slots, starts,
    staged_conv, staged_grid, staged_states, dots, out, squares, T, chunks, closed, bound, H: tl.constexpr,
    d: tl.constexpr, BV: tl.constexpr, TM: tl.constexpr, LEAD: tl.constexpr, ALONE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The recurrence of one head and a tile of value columns, to the gated rows and their parts of the norm."""
    tile, head, request = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    P: tl.constexpr = 5 * H * d + H
    STEP: tl.constexpr = H * (4 * d + 1)
    channel, value = tl.arange(0, d), tl.arange(0, BV)
    mine = tile * BV + value
    of_head, of_value = head * d + channel, 2 * H * d + head * d + mine
    weight = tl.load(norm + mine)
    if ALONE:
        taps_q, taps_k, taps_v = taps(conv, of_head), taps(conv, H * d + of_head), taps(conv, of_value)
        scale_f, bias_f = tl.load(scale + of_head), tl.load(bias + of_head)
        scale_b, bias_b = tl.load(scale + 2 * H * d + head), tl.load(bias + 2 * H * d + head)
    SOON: tl.constexpr = LEAD and PDL > 0  # else committed rows are stored again, which has to wait, or none waits
    if not SOON:
        enter(PDL)
    slot = tl.load(slots + request, cache_modifier=WRITTEN)
    start = tl.load(starts + request, cache_modifier=WRITTEN)
    offset = (start % TM).to(tl.int32)
    at_pool = pool_state + slot * (H * d * d) + head * d * d + channel[None, :] * d + mine[:, None]
    at_lead = lead + slot * (H * d * d) + head * d * d + mine[:, None] * d + channel[None, :]
    if LEAD:
        state, first = _nearest(at_lead, at_pool, tl.load(walked + request, cache_modifier=WRITTEN) - (start - offset))
    else:
        state, first = tl.load(at_pool), 0
    ring = pool_ring + slot * (TM * STEP) + head * (4 * d + 1)
    grid = staged_grid + request * chunks * (TM * STEP) + head * (4 * d + 1)
    row = projected + request * T * P
    if ALONE:
        before_q, before_k, before_v = _raw_before(pool_conv + slot * (9 * H * d), of_head, of_value, H, d)
    if ALONE and not SOON:  # asked for before anything is stored: a store waits for its value, and later loads with it
        fresh = _new(row, of_head, mine, head, H, d)
    state = _committed(state, ring, grid, first, offset, tile, channel, mine, STEP, d, TM, not LEAD)
    if SOON:
        enter(PDL)
    if ALONE and SOON:
        fresh = _new(row, of_head, mine, head, H, d)
    if LEAD:
        tl.store(at_lead, state)
    at = request * T * H + head
    to_states = staged_states + request * (closed + 1) * (H * d * d) + head * d * d + tile * BV
    outs, sums = out + at * d + tile * BV, squares + at * (d // BV) + tile
    if ALONE:
        state = _walk_alone(
            state, row, taps_q, taps_k, taps_v, scale_f, bias_f, scale_b, bias_b, before_q, before_k, before_v, fresh,
            staged_conv + request * (T + 3) * (3 * H * d), grid, outs, sums, to_states, weight, T, offset, tile, head,
            bound, H, d, BV, TM,
        )  # fmt: skip
    else:
        state = _walk_ready(
            state, grid + offset * STEP, row + 4 * H * d + head * d + mine, dots + at, weight, outs, sums, to_states, T,
            offset, channel, mine, value, H, d, BV, TM,
        )  # fmt: skip
    leave(PDL)
