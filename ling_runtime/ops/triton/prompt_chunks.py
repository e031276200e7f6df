"""The recurrence over chunks of 64 rows in Triton: couplings and solve of all chunks, then the walk, then reading.

With G the running sum of log decays inside a chunk and S the state at its start (`ops/kda.py` has the law): U = U0 - W
S, the next state is e^G_end S + (e^(G_end - G) K)^T U, and outputs are (e^G Q) S + tril(Q K^T e^(G_i - G_j)) U, where
W and U0 are (I + A)^-1 of beta e^G K and beta V. A difference of sums reaches -320, so exponentials are never split
over a chunk: each block of 16 rows measures from its own start, with 8 times the bound to spare on either side. For a
bf16 model products take tf32 operands, rounded here because the tensor core cuts them (four times the error, all of one
sign): outputs are within 5e-4 of fp32's, 2e-3 where keys are nearly one, which is below what a bf16 row holds. Only the
inverse takes three products for one; everywhere they made the compiler run out of registers. All kernels are one warp
group: with two, Triton 3.6 multiplies 64 rows of tf32 by what it has just computed wrongly on sm_90.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl

from ling_runtime.config import TILE
from ling_runtime.ops.prompt import PROMPT_CHUNK
from ling_runtime.ops.triton.kda_rows import sigmoid

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.ops.kda import KdaWeights
    from ling_runtime.ops.triton.prompt_kda import Ready


class WalkTiles(NamedTuple):
    """Columns of the state per program, warps, and stages of the load pipeline."""

    values: int
    warps: int
    stages: int


WARPS = 4
"""One warp group."""
WALK_TILES = WalkTiles(16, WARPS, 3)
"""With 8 heads of 128, 64 programs."""


class Chunks(NamedTuple):
    """By head and chunk [H, n, ...], fp32."""

    within: Tensor
    """[64, 64] what outputs take of the chunk's own updates."""
    sink: Tensor
    """[64, d] W"""
    update: Tensor
    """[64, d] U0, and after the walk U."""
    keys: Tensor
    """[d, 64] keys decayed to where the chunk's state is kept, zero behind it; turned, as the walk multiplies them."""
    fade: Tensor
    """[d] decay of the state over the chunk."""
    starts: Tensor
    """[d, d] the state at the chunk's start, filled by the walk."""


def prepare(ready: Ready, kept: int, bound: float, precision: str) -> Chunks:
    """What the walk and the reading need of each chunk; states are kept of the first `kept` rows."""
    heads, rows, width = ready.key.shape
    count = rows // PROMPT_CHUNK
    of_rows = ready.key.new_empty(heads, count, PROMPT_CHUNK, width)
    pairs = ready.key.new_empty(heads, count, PROMPT_CHUNK, PROMPT_CHUNK)
    chunks = Chunks(
        pairs, of_rows, torch.empty_like(of_rows), of_rows.new_empty(heads, count, width, PROMPT_CHUNK),
        of_rows.new_empty(heads, count, width), of_rows.new_empty(heads, count, width, width),
    )  # fmt: skip
    coupling = torch.empty_like(pairs)
    _couple[(PROMPT_CHUNK // TILE, count, heads)](
        ready.query, ready.key, ready.decay, ready.rate, chunks.within, coupling, -bound * TILE / 2, width,
        PROMPT_CHUNK, TILE, precision, num_warps=WARPS,
    )  # fmt: skip
    _solve[(count, heads)](
        ready.key, ready.value, ready.decay, ready.rate, coupling, chunks.sink, chunks.update, chunks.keys, chunks.fade,
        kept, width, min(width, 64), PROMPT_CHUNK, TILE, precision, num_warps=WARPS,
    )  # fmt: skip
    return chunks


def walk(chunks: Chunks, state: Tensor, precision: str, tiles: WalkTiles = WALK_TILES) -> Tensor:
    """From state [H, d, d] through all chunks -> the state [H, d, d] after the kept rows; fills starts and updates."""
    heads, count, _, width = chunks.sink.shape
    end, values = torch.empty_like(state), min(tiles.values, width)
    _walk_chunks[(width // values, heads)](
        chunks.sink, chunks.update, chunks.keys, chunks.fade, state, chunks.starts, end, count, width, values,
        PROMPT_CHUNK, precision, num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return end


def read(ready: Ready, chunks: Chunks, projected: Tensor, rows: int, weights: KdaWeights, precision: str) -> Tensor:
    """-> outputs [R, H d], normed by head and gated; rows past `rows` are zero."""
    heads, count, _, width = chunks.sink.shape
    out = projected.new_empty(len(projected), heads * width)
    _read_chunks[(count, heads)](
        ready.query, ready.decay, chunks.within, chunks.update, chunks.starts, projected, weights.o_norm, out, rows,
        len(out), weights.eps, heads, width, min(width, 32), PROMPT_CHUNK, precision, num_warps=WARPS,
    )  # fmt: skip
    return out


@triton.jit
def _nearest(x, PRECISION: tl.constexpr):
    """x as the nearest tf32, where products take that."""
    if PRECISION == "tf32":
        x = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return x


@triton.jit
def _times(a, b, PRECISION: tl.constexpr):
    return tl.dot(_nearest(a, PRECISION), _nearest(b, PRECISION), input_precision=PRECISION)


@triton.jit
def _exactly(a, b, PRECISION: tl.constexpr):
    """tf32 in three products, almost fp32: an inverse carries its own error into everything behind it."""
    return tl.dot(a, b, input_precision="tf32x3" if PRECISION == "tf32" else PRECISION)


@triton.jit
def _couple(
    query, key, decay, rate, within, coupling, half, d: tl.constexpr, CHUNK: tl.constexpr, TM: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A block of 16 rows against those up to its end: tril(Q K^T e^(G_i - G_j)), and beta times the same of K below."""
    part, at = tl.program_id(0), tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)
    row, place, channel = part * TM + tl.arange(0, TM), tl.arange(0, CHUNK), tl.arange(0, d)
    mine = (at * CHUNK + row)[:, None] * d + channel[None, :]
    first = tl.load(decay + (at * CHUNK + part * TM - 1) * d + channel, mask=(channel >= 0) & (part > 0), other=0.0)
    raised = tl.exp(tl.load(decay + mine) - first[None, :] + half)
    seen = (place < (part + 1) * TM)[:, None]
    theirs = (at * CHUNK + place)[:, None] * d + channel[None, :]
    sums = tl.load(decay + theirs, mask=seen, other=0.0)
    lowered = tl.exp(tl.where(seen, first[None, :] - sums - half, -float("inf")))
    lowered = tl.trans(tl.load(key + theirs, mask=seen, other=0.0) * lowered)
    of_query = _times(tl.load(query + mine) * raised, lowered, PRECISION)
    of_key = _times(tl.load(key + mine) * raised, lowered, PRECISION)
    beta = tl.load(rate + at * CHUNK + row)
    to = (at * CHUNK + row)[:, None] * CHUNK + place[None, :]
    tl.store(within + to, tl.where(place[None, :] <= row[:, None], _nearest(of_query, PRECISION), 0.0))
    tl.store(coupling + to, tl.where(place[None, :] < row[:, None], of_key * beta[:, None], 0.0))


@triton.jit
def _inverse_of_blocks(coupling, CHUNK: tl.constexpr, TM: tl.constexpr):
    """[CHUNK, CHUNK]: the inverses of the unit triangular blocks of TM on the diagonal, by forward substitution."""
    B: tl.constexpr = CHUNK // TM
    row = tl.arange(0, TM)[None, :, None]
    column = tl.arange(0, TM)[None, None, :]
    inverse = tl.where(row == column, 1.0, 0.0) + tl.zeros((B, TM, TM), tl.float32)
    of_block = coupling + (tl.arange(0, B) * TM)[:, None] * (CHUNK + 1) + tl.arange(0, TM)[None, :]
    for i in range(1, TM):
        a = tl.load(of_block + i * CHUNK)
        new = -tl.sum(a[:, :, None] * inverse, axis=1)
        unit = tl.where(tl.arange(0, TM) == i, 1.0, 0.0)
        inverse = tl.where(row == i, (new + unit[None, :])[:, None, :], inverse)
    flat = tl.reshape(inverse, (CHUNK, 1, TM)) + tl.zeros((CHUNK, B, TM), tl.float32)
    own = (tl.arange(0, CHUNK) // TM)[:, None, None] == tl.arange(0, B)[None, :, None]
    return tl.reshape(tl.where(own, flat, 0.0), (CHUNK, CHUNK))


@triton.jit(do_not_specialize=["kept"])
def _solve(
    key, value, decay, rate, coupling, sink, update, keys, fade, kept, d: tl.constexpr, BD: tl.constexpr,
    CHUNK: tl.constexpr, TM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """W and U0 of a chunk, and its keys decayed to the end of what is kept of it, BD channels at a time.

    (I + A) = (I + A_diagonal) (I + N) with N = (I + A_diagonal)^-1 A_rest, whose fourth power is zero: so its inverse
    is (I - N) (I + N N), behind the inverses of the diagonal blocks.
    """
    chunk, at = tl.program_id(0), tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    place = tl.arange(0, CHUNK)
    blocks = _inverse_of_blocks(coupling + at * CHUNK * CHUNK, CHUNK, TM)
    a = tl.load(coupling + at * CHUNK * CHUNK + place[:, None] * CHUNK + place[None, :])
    rest = tl.where((place // TM)[:, None] > (place // TM)[None, :], a, 0.0)
    n = _exactly(blocks, rest, PRECISION)
    one = tl.where(place[:, None] == place[None, :], 1.0, 0.0)
    inverse = _exactly(_exactly(one - n, one + _exactly(n, n, PRECISION), PRECISION), blocks, PRECISION)
    beta = tl.load(rate + at * CHUNK + place)
    limit = tl.minimum(tl.maximum(kept - chunk * CHUNK, 0), CHUNK)
    for part in range(0, d, BD):
        channel = part + tl.arange(0, BD)
        rows = (at * CHUNK + place)[:, None] * d + channel[None, :]
        sums, k = tl.load(decay + rows), tl.load(key + rows)
        w = _times(inverse, k * tl.exp(sums) * beta[:, None], PRECISION)
        tl.store(sink + rows, _nearest(w, PRECISION))
        v = tl.load(value + rows).to(tl.float32) * beta[:, None]
        tl.store(update + rows, _times(inverse, v, PRECISION))
        end = tl.load(decay + (at * CHUNK + limit - 1) * d + channel, mask=(channel >= 0) & (limit > 0), other=0.0)
        distance = tl.where((place < limit)[:, None], end[None, :] - sums, -float("inf"))
        turned = (at * d + channel)[:, None] * CHUNK + place[None, :]
        tl.store(keys + turned, tl.trans(_nearest(k * tl.exp(distance), PRECISION)))
        tl.store(fade + at * d + channel, tl.exp(end))


@triton.jit(do_not_specialize=["count"])
def _walk_chunks(
    sink, update, keys, fade, state, starts, end, count, d: tl.constexpr, BV: tl.constexpr, CHUNK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One head and BV columns of its state through all chunks."""
    tile, head = tl.program_id(0), tl.program_id(1)
    place, channel = tl.arange(0, CHUNK), tl.arange(0, d)
    mine = tile * BV + tl.arange(0, BV)
    square = channel[:, None] * d + mine[None, :]
    current = tl.load(state + head * d * d + square)
    for chunk in range(count):
        at = head * count + chunk
        tl.store(starts + at * d * d + square, current)
        rows = (at * CHUNK + place) * d
        w = tl.load(sink + rows[:, None] + channel[None, :])
        u = tl.load(update + rows[:, None] + mine[None, :])
        u -= tl.dot(w, _nearest(current, PRECISION), input_precision=PRECISION)
        u = _nearest(u, PRECISION)
        tl.store(update + rows[:, None] + mine[None, :], u)
        k = tl.load(keys + (at * d + channel)[:, None] * CHUNK + place[None, :])
        current *= tl.load(fade + at * d + channel)[:, None]
        current = tl.dot(k, u, current, input_precision=PRECISION)
    tl.store(end + head * d * d + square, current)


@triton.jit(do_not_specialize=["T", "R"])
def _read_chunks(
    query, decay, within, update, starts, projected, norm, out, T, R, eps, H: tl.constexpr, d: tl.constexpr,
    BD: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Outputs of a chunk, normed over the head and gated; BD channels of the state at a time."""
    chunk, head = tl.program_id(0), tl.program_id(1)
    at = head * tl.num_programs(0) + chunk
    place, channel = tl.arange(0, CHUNK), tl.arange(0, d)
    of_chunk = (at * CHUNK + place)[:, None] * d
    o = tl.zeros((CHUNK, d), tl.float32)
    for part in range(0, d, BD):
        inner = part + tl.arange(0, BD)
        q = tl.load(query + of_chunk + inner[None, :]) * tl.exp(tl.load(decay + of_chunk + inner[None, :]))
        s = tl.load(starts + at * d * d + inner[:, None] * d + channel[None, :])
        o = tl.dot(_nearest(q, PRECISION), _nearest(s, PRECISION), o, input_precision=PRECISION)
    p = tl.load(within + at * CHUNK * CHUNK + place[:, None] * CHUNK + place[None, :])
    o = tl.dot(p, tl.load(update + of_chunk + channel[None, :]), o, input_precision=PRECISION)
    o *= tl.rsqrt(tl.sum(o * o, axis=1) / d + eps)[:, None] * tl.load(norm + channel)[None, :]
    t, mine = chunk * CHUNK + place, head * d + channel
    gates = projected + t[:, None] * (5 * H * d + H) + 4 * H * d + mine[None, :]
    live = (t < T)[:, None]
    o *= sigmoid(tl.load(gates, mask=live, other=0.0).to(tl.float32))
    to = out + t[:, None] * (H * d) + mine[None, :]
    tl.store(to, tl.where(live, o, 0.0).to(out.dtype.element_ty), mask=(t < R)[:, None])
