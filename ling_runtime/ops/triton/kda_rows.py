"""Rows of the KDA recurrence made ready in Triton: convolution, norms, decay and rate of one head's row.

The same function serves a kernel that does all rows of a window side by side and the walk over one or two rows, which
makes them for itself. Nothing here is fused by the compiler (`enable_fp_fusion=False` at both launches, silu by
division), so a row has the same bits wherever it was made.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ling_runtime.ops.triton.launch import WRITTEN, enter, leave


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def taps(conv, column):
    at = conv + column * 4
    return tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3)


@triton.jit
def before(pool, column, C: tl.constexpr):
    """The three committed rows before the window."""
    return (
        tl.load(pool + column, cache_modifier=WRITTEN),
        tl.load(pool + C + column, cache_modifier=WRITTEN),
        tl.load(pool + 2 * C + column, cache_modifier=WRITTEN),
    )


@triton.jit
def stage(staged, column, first, second, third, C: tl.constexpr):
    tl.store(staged + column, first)
    tl.store(staged + C + column, second)
    tl.store(staged + 2 * C + column, third)


@triton.jit
def convolved(first, second, third, row, taps):
    """silu of the depthwise convolution, rounded as activations are."""
    total = first.to(tl.float32) * taps[0]
    total += second.to(tl.float32) * taps[1]
    total += third.to(tl.float32) * taps[2]
    total += row.to(tl.float32) * taps[3]
    return (total / (1.0 + tl.exp(-total))).to(row.dtype).to(tl.float32)


@triton.jit
def normed(q, k, f, b, scale_f, bias_f, scale_b, bias_b, bound, d: tl.constexpr):
    """q and k of unit length, q scaled; the logarithm of the decay; the rate; k . q."""
    q = q * (tl.rsqrt(tl.sum(q * q) + 1e-6) * (d**-0.5))
    k = k * tl.rsqrt(tl.sum(k * k) + 1e-6)
    g = sigmoid(f.to(tl.float32) * scale_f + bias_f) * bound
    return q, k, g, sigmoid(b.to(tl.float32) * scale_b + bias_b), tl.sum(k * q)


@triton.jit
def _tap(projected, pool, source, column, P: tl.constexpr, C: tl.constexpr):
    """Row `source` of the window at channels `column`; negative ones are the committed rows before it."""
    new = tl.load(projected + source * P + column, mask=(column >= 0) & (source >= 0), other=0.0)
    old = tl.load(pool + (source + 3) * C + column, mask=(column >= 0) & (source < 0), other=0.0)
    return tl.where(source < 0, old, new)


@triton.jit
def _around(projected, pool, t, column, P: tl.constexpr, C: tl.constexpr):
    return (
        _tap(projected, pool, t - 3, column, P, C),
        _tap(projected, pool, t - 2, column, P, C),
        _tap(projected, pool, t - 1, column, P, C),
        _tap(projected, pool, t, column, P, C),
    )


@triton.jit
def _keep_raw(staged, column, t, rows, C: tl.constexpr):
    """The raw row for the commit, and from the first row's program the committed ones before it."""
    tl.store(staged + (3 + t) * C + column, rows[3])
    if t == 0:
        stage(staged, column, rows[0], rows[1], rows[2], C)


@triton.jit(do_not_specialize=["T", "chunks"])
def ready(
    projected, conv, scale, bias, pool_conv, slots, starts, staged_conv, staged_grid, dots, T, chunks, bound,
    H: tl.constexpr, d: tl.constexpr, TM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Row t of one head of one request, into the staged grid at its absolute place, and its k . q into `dots`
    [R, H]. All loads come before the stores: a store waits for its value, and every load behind it in the program
    with it.
    """
    t, head, request = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    C: tl.constexpr = 3 * H * d
    P: tl.constexpr = 5 * H * d + H
    W: tl.constexpr = 4 * d + 1
    channel = tl.arange(0, d)
    of_head = head * d + channel
    taps_q, taps_k, taps_v = taps(conv, of_head), taps(conv, H * d + of_head), taps(conv, 2 * H * d + of_head)
    scale_f, bias_f = tl.load(scale + of_head), tl.load(bias + of_head)
    scale_b, bias_b = tl.load(scale + 2 * H * d + head), tl.load(bias + 2 * H * d + head)
    enter(PDL)
    slot, start = tl.load(slots + request), tl.load(starts + request)
    rows, pool = projected + request * T * P, pool_conv + slot * (3 * C)
    raw_q = _around(rows, pool, t, of_head, P, C)
    raw_k = _around(rows, pool, t, H * d + of_head, P, C)
    raw_v = _around(rows, pool, t, 2 * H * d + of_head, P, C)
    f, b = tl.load(rows + t * P + 3 * H * d + of_head), tl.load(rows + t * P + 5 * H * d + head)
    q = convolved(raw_q[0], raw_q[1], raw_q[2], raw_q[3], taps_q)
    k = convolved(raw_k[0], raw_k[1], raw_k[2], raw_k[3], taps_k)
    v = convolved(raw_v[0], raw_v[1], raw_v[2], raw_v[3], taps_v)
    q, k, g, beta, dot = normed(q, k, f, b, scale_f, bias_f, scale_b, bias_b, bound, d)
    place = (start % TM).to(tl.int32) + t
    to = staged_grid + ((request * chunks * TM + place) * H + head) * W
    tl.store(to + channel, q)
    tl.store(to + d + channel, k)
    tl.store(to + 2 * d + channel, v)
    tl.store(to + 3 * d + channel, g)
    tl.store(to + 4 * d, beta)
    tl.store(dots + (request * T + t) * H + head, dot)
    staged = staged_conv + request * (T + 3) * C
    _keep_raw(staged, of_head, t, raw_q, C)
    _keep_raw(staged, H * d + of_head, t, raw_k, C)
    _keep_raw(staged, 2 * H * d + of_head, t, raw_v, C)
    leave(PDL)
