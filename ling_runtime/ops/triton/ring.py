"""What the host reads of a step, written by the step itself: one small kernel at its end, into memory of the host.

The ring lies in pinned memory, which kernels can write. Whose turn it is stands on the device, so a replay finds its
place without being told, and a reader needs no copy on another stream, only the step's own end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from ling_runtime.ops.triton.launch import enter, launch, leave

if TYPE_CHECKING:
    from torch import Tensor


def keep(choices: Tensor, accepted: Tensor, ring: Tensor, turn: Tensor) -> None:
    """choices [B, W] and accepted [B] into ring [depth, B, W + 1] at `turn` [1], which goes one on."""
    batch, rows = choices.shape
    _keep[(1,)](
        choices, accepted, ring, turn, batch, rows, ring.shape[0], triton.next_power_of_2(batch * (rows + 1)),
        **launch(), num_warps=1,
    )  # fmt: skip


@triton.jit(do_not_specialize=["B", "W", "depth"])
def _keep(choices, accepted, ring, turn, B, W, depth, BLOCK: tl.constexpr, PDL: tl.constexpr):
    enter(PDL)
    now = tl.load(turn)
    place = tl.arange(0, BLOCK)
    request, column = place // (W + 1), place % (W + 1)
    inside = request < B
    choice = tl.load(choices + request * W + column, mask=inside & (column < W), other=0)
    count = tl.load(accepted + request, mask=inside & (column == W), other=0)
    tl.store(ring + now % depth * (B * (W + 1)) + place, tl.where(column == W, count, choice), mask=inside)
    tl.store(turn, now + 1)
    leave(PDL)
