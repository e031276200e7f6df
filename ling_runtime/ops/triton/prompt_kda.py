"""KDA over a prompt in Triton: rows made ready, chunks of 64 prepared side by side, the state walked chunk by chunk.

Chunks lie at absolute positions and a part of a prompt begins with one, so a row meets the same operands in the same
places however the prompt is cut. The surprise is what is left for decoding, whose chunks have 16 rows: the state at
the last of their boundaries, which may lie inside a chunk of 64. The walk ends there, and the ring has the rows behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl

from ling_runtime.config import TILE
from ling_runtime.ops.kda import KdaEnd, KdaStaged, kda_window
from ling_runtime.ops.prompt import PROMPT_CHUNK
from ling_runtime.ops.registry import variant
from ling_runtime.ops.triton.kda_rows import sigmoid
from ling_runtime.ops.triton.linear import precision
from ling_runtime.ops.triton.prompt_chunks import prepare, read, walk

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.memory.window import Window
    from ling_runtime.ops.kda import KdaState, KdaWeights
    from ling_runtime.ops.registry import Kernels

TAPS = 4
"""The width of the convolution that `_ready` is written for."""


class Ready(NamedTuple):
    """Rows after convolution, norms and gates, by head: [H, chunks * 64, d], zeros where there is no row; fp32."""

    query: Tensor
    key: Tensor
    value: Tensor
    """In the rows' own precision, to which they are rounded."""
    decay: Tensor
    """Sums of the logarithms of decay from the chunk's start on, the row's own included."""
    rate: Tensor
    """[H, chunks * 64]"""
    ring: Tensor
    """[1, 16, H, 4 d + 1] the rows past the last boundary of 16."""


@variant("prompt_kda", "triton", "rounding", "chunks of 64 rows instead of 16; fp32 operands in tf32")
def kda_prompt(
    projected: Tensor, window: Window, weights: KdaWeights, state: KdaState, kernels: Kernels
) -> tuple[Tensor, KdaStaged | KdaEnd]:
    """projected [R, 5 H d + H] holding q|k|v|f|gate|beta -> (rows [R, D] of the output projection, what it leaves)."""
    if weights.conv.shape[1] != TAPS:
        return kda_window(projected, window, weights, state, kernels["linear"])
    assert window.batch == 1, "a prompt is one request's"
    assert window.starts[0] % PROMPT_CHUNK == 0, "a part of a prompt begins with a chunk"
    rows, size = window.real_rows, weights.out.shape[1]
    kept = rows - (window.starts[0] + rows) % TILE
    ready = _make_ready(projected, rows, kept, weights, state)
    products = precision(projected.dtype)
    chunks = prepare(ready, kept, weights.lower_bound, products)
    end = walk(chunks, state.state[0], products)
    normed = read(ready, chunks, projected, rows, weights, products)
    last = projected[max(rows - TAPS + 1, 0) : rows, : 3 * size]
    conv = torch.cat([state.conv[0], last])[1 - TAPS :].unsqueeze(0)
    return kernels["prompt_linear"](normed, weights.out, kernels), KdaEnd(conv, ready.ring, end.unsqueeze(0))


def _make_ready(projected: Tensor, rows: int, kept: int, weights: KdaWeights, state: KdaState) -> Ready:
    """The first `rows` rows; those from `kept` on go to the ring, too."""
    heads, width = state.state.shape[1:3]
    count = triton.cdiv(rows, PROMPT_CHUNK)
    wide = {"dtype": torch.float32, "device": projected.device}
    by_head = (heads, count * PROMPT_CHUNK, width)
    query, key, decay = (torch.empty(by_head, **wide) for _ in range(3))  # type: ignore[call-overload]
    value, rate = projected.new_empty(by_head), torch.empty(by_head[:2], **wide)  # type: ignore[call-overload]
    ring = torch.zeros_like(state.ring)
    _ready[(count, heads)](
        projected, weights.conv, weights.gate_scale, weights.gate_bias, state.conv, query, key, value, decay, rate,
        ring, rows, kept, weights.lower_bound, heads, width, PROMPT_CHUNK, TILE, num_warps=16,
    )  # fmt: skip
    return Ready(query, key, value, decay, rate, ring)


@triton.jit
def _mixed(projected, before, conv, t, live, column, P: tl.constexpr, C: tl.constexpr):
    """silu of the depthwise convolution of rows t, rounded as activations are; rows before the part are `before`."""
    total = tl.zeros((t.shape[0], column.shape[0]), tl.float32)
    for tap in tl.static_range(4):
        source = t - 3 + tap
        here = (live & (source >= 0))[:, None]
        raw = tl.load(projected + source[:, None] * P + column[None, :], mask=here, other=0.0)
        if tl.program_id(0) == 0:
            earlier = (live & (source < 0))[:, None]
            old = tl.load(before + (source + 3)[:, None] * C + column[None, :], mask=earlier, other=0.0)
            raw = tl.where(earlier, old, raw)
        total += raw.to(tl.float32) * tl.load(conv + column * 4 + tap)[None, :]
    return (total / (1.0 + tl.exp(-total))).to(projected.dtype.element_ty).to(tl.float32)


@triton.jit(do_not_specialize=["T", "kept"])
def _ready(
    projected, conv, scale, bias, before, query, key, value, decay, rate, ring, T, kept, bound, H: tl.constexpr,
    d: tl.constexpr, CHUNK: tl.constexpr, TM: tl.constexpr,
):  # fmt: skip
    """One chunk of one head: every row at its place, and the ring's rows once more."""
    chunk, head = tl.program_id(0), tl.program_id(1)
    C: tl.constexpr = 3 * H * d
    P: tl.constexpr = 5 * H * d + H
    W: tl.constexpr = 4 * d + 1
    place, channel = tl.arange(0, CHUNK), tl.arange(0, d)
    t = chunk * CHUNK + place
    live, of_head = t < T, head * d + channel
    to = (head * tl.num_programs(0) * CHUNK + t)[:, None] * d + channel[None, :]
    in_ring = ring + ((t % TM) * H + head)[:, None] * W + channel[None, :]
    open_row = (live & (t >= kept))[:, None]
    q = _mixed(projected, before, conv, t, live, of_head, P, C)
    q *= (tl.rsqrt(tl.sum(q * q, axis=1) + 1e-6) * (d**-0.5))[:, None]
    tl.store(query + to, q)
    tl.store(in_ring, q, mask=open_row)
    k = _mixed(projected, before, conv, t, live, H * d + of_head, P, C)
    k *= tl.rsqrt(tl.sum(k * k, axis=1) + 1e-6)[:, None]
    tl.store(key + to, k)
    tl.store(in_ring + d, k, mask=open_row)
    v = _mixed(projected, before, conv, t, live, 2 * H * d + of_head, P, C)
    tl.store(value + to, v.to(value.dtype.element_ty))
    tl.store(in_ring + 2 * d, v, mask=open_row)
    row = projected + t * P
    f = tl.load(row[:, None] + 3 * H * d + of_head[None, :], mask=live[:, None], other=0.0).to(tl.float32)
    g = sigmoid(f * tl.load(scale + of_head)[None, :] + tl.load(bias + of_head)[None, :]) * bound
    g = tl.where(live[:, None], g, 0.0)
    tl.store(in_ring + 3 * d, g, mask=open_row)
    tl.store(decay + to, tl.cumsum(g, axis=0))
    b = tl.load(row + 5 * H * d + head, mask=live, other=0.0).to(tl.float32)
    b = sigmoid(b * tl.load(scale + 2 * H * d + head) + tl.load(bias + 2 * H * d + head))
    b = tl.where(live, b, 0.0)
    tl.store(rate + head * tl.num_programs(0) * CHUNK + t, b)
    tl.store(ring + ((t % TM) * H + head) * W + 4 * d, b, mask=live & (t >= kept))
