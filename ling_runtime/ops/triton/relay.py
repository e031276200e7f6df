"""The start of a captured step in one launch: everything that is looked up by slot, for every request.

As single gathers and copies these cost two microseconds each, and a NEXTN step has dozens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from ling_runtime.ops.triton.launch import enter, launch, leave

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.executor.relay import Relay


def look_up(
    relay: Relay, walked: Tensor, slots: Tensor, starts: Tensor, verified: Tensor, table: Tensor, since: Tensor
) -> None:
    """Of `slots` [B]: lengths into starts [B], bonus tokens and drafts into verified [B, W], pages into table, and
    of `walked` into since [B].
    """
    batch, rows = verified.shape
    _look_up[(batch,)](
        slots, relay.lengths, relay.tokens, relay.drafts, relay.tables, walked, starts, verified, table, since,
        relay.drafts.shape[1], rows, table.shape[1], triton.next_power_of_2(rows),
        triton.next_power_of_2(table.shape[1]), **launch(), num_warps=4,
    )  # fmt: skip


@triton.jit(do_not_specialize=["D", "W"])
def _look_up(
    slots, lengths, tokens, drafts, tables, walked, starts, verified, table, since, D, W, pages, WB: tl.constexpr,
    PB: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    enter(PDL)
    request = tl.program_id(0)
    slot = tl.load(slots + request)
    tl.store(starts + request, tl.load(lengths + slot))
    tl.store(since + request, tl.load(walked + slot))
    place, page = tl.arange(0, WB), tl.arange(0, PB)
    draft = tl.load(drafts + slot * D + place - 1, mask=(place > 0) & (place < W), other=0)
    tl.store(verified + request * W + place, tl.where(place == 0, tl.load(tokens + slot), draft), mask=place < W)
    here = tl.load(tables + slot * pages + page, mask=page < pages, other=0)
    tl.store(table + request * pages + page, here, mask=page < pages)
    leave(PDL)
