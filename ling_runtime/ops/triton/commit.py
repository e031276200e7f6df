"""The end of a greedy step on the device: accept the chain, advance the request, commit its recurrent state.

Three launches for all layers. The surprise is how little is copied: the state itself moves only when an accepted row
closes its chunk of 16; otherwise a commit is the accepted rows and three rows of convolution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import triton
import triton.language as tl

from ling_runtime.config import TILE
from ling_runtime.ops.triton.launch import enter, launch, leave

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.memory.device import DeviceRecurrent, DeviceWindow


SEED = tl.constexpr(7)


class Results(NamedTuple):
    """What the host reads of a step."""

    choices: Tensor
    """[B, W] the best token behind each verified one."""
    accepted: Tensor
    """[B] rows of each request, in 1..W."""


def accept(
    window: DeviceWindow,
    verified: Tensor,
    choices: Tensor,
    lengths: Tensor,
    tokens: Tensor,
    results: Results,
    simulated: float | None = None,
) -> None:
    """verified and choices [B, W]: fills `results` and advances `lengths` and `tokens` of the slots.

    Row j + 1 is accepted iff its token is what row j chose and all before were. With `simulated`, as many rows are
    accepted as make that the mean, the bonus counted, by a draw from the position; drafts are then emitted as they are.
    """
    _accept[(window.batch,)](
        verified, choices, window.slot_index, lengths, tokens, results.choices, results.accepted, window.rows,
        simulated or 0.0, triton.next_power_of_2(window.rows), simulated is not None, **launch(), num_warps=1,
    )  # fmt: skip


def commit(recurrent: DeviceRecurrent, window: DeviceWindow, accepted: Tensor) -> None:
    """Advance the pools by accepted [B] rows of the staged window; `window.start_index` is where it started."""
    pools, staged = recurrent.pools, recurrent.staged
    layers, slots, taps, channels = pools.conv.shape
    heads, width = pools.state.shape[2:4]
    grid, states = staged.grid.shape[2], staged.states.shape[2]
    _commit[(heads, window.batch, layers)](
        pools.conv, pools.ring, pools.state, pools.lead, pools.walked, staged.conv, staged.grid, staged.states,
        window.slot_index, window.start_index, accepted, window.rows, slots, grid, states, heads, width, taps, TILE,
        triton.next_power_of_2(4 * width + 1), **launch(), num_warps=8,
    )  # fmt: skip
    assert channels == 3 * heads * width


@triton.jit(do_not_specialize=["W"])
def _accept(
    verified, choices, slots, lengths, tokens, chosen, accepted, W, mean, BLOCK: tl.constexpr, SIMULATED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    enter(PDL)
    request = tl.program_id(0)
    place = tl.arange(0, BLOCK)
    draft = tl.load(verified + request * W + place + 1, mask=place + 1 < W, other=-1)
    choice = tl.load(choices + request * W + place, mask=place < W, other=-2)
    correct = tl.min(tl.where(draft == choice, W, place))
    slot = tl.load(slots + request)
    before = tl.load(lengths + slot)
    if SIMULATED:
        least = tl.floor(mean)
        drawn = least + (tl.rand(SEED, before.to(tl.int32)) < mean - least).to(tl.float32)
        correct = tl.minimum(tl.maximum(drawn.to(tl.int32), 1), W) - 1
        choice = tl.where(place < correct, draft, choice)
    tl.store(chosen + request * W + place, choice, mask=place < W)
    tl.store(accepted + request, (correct + 1).to(tl.int64))
    length = before + correct + 1
    tl.store(lengths + slot, tl.where(slot == 0, 0, length))  # padding's slot stays at its first page
    tl.store(tokens + slot, tl.load(choices + request * W + correct))
    leave(PDL)


@triton.jit(do_not_specialize=["W"])
def _commit(
    conv, ring, state, lead, walked, staged_conv, staged_grid, staged_states, slots, starts, accepted, W, SLOTS, GRID,
    STATES, H: tl.constexpr, d: tl.constexpr, TAPS: tl.constexpr, TM: tl.constexpr, RB: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One head of one request in one layer."""
    enter(PDL)
    head, request, layer = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    batch = tl.num_programs(1)
    slot, count, start = tl.load(slots + request), tl.load(accepted + request), tl.load(starts + request)
    offset = start % TM
    length = offset + count
    closed = length // TM
    to, source = layer * SLOTS + slot, layer * batch + request
    channel = tl.arange(0, d)
    for part in tl.static_range(3):
        column = (part * H + head) * d + channel
        for i in tl.static_range(TAPS):
            raw = tl.load(staged_conv + (source * (W + TAPS) + count + i) * (3 * H * d) + column)
            tl.store(conv + (to * TAPS + i) * (3 * H * d) + column, raw)
    key = tl.arange(0, d)
    if closed > 0:
        for first in range(0, d, 16):
            value = first + tl.arange(0, 16)
            tile = head * d * d + key[:, None] * d + value[None, :]
            closing = tl.load(staged_states + (source * STATES + closed) * (H * d * d) + tile)
            tl.store(state + to * (H * d * d) + tile, closing)
            tl.store(lead + to * (H * d * d) + head * d * d + value[None, :] * d + key[:, None], closing)
    if (layer == 0) & (head == 0) & (slot > 0):
        tl.store(walked + slot, tl.where(closed > 0, start - offset + closed * TM, start))
    width = tl.arange(0, RB)
    inside = width < 4 * d + 1
    low, high = tl.where(closed > 0, 0, offset).to(tl.int32), tl.where(closed > 0, TM, length).to(tl.int32)
    for i in range(low, high):
        alive = i < length - closed * TM
        at = (((source * GRID + closed) * TM + i) * H + head) * (4 * d + 1) + width
        row = tl.load(staged_grid + at, mask=inside & alive, other=0.0)
        tl.store(ring + ((to * TM + i) * H + head) * (4 * d + 1) + width, row, mask=inside)
    leave(PDL)
