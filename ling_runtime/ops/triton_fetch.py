"""Weights into the cache before anybody asks for them.

Between two large products a step has microseconds in which memory stands idle: routing, norms, the recurrence. A few
programs on another branch of the graph use them to fetch what the next products will read, whoever the tokens are:
output projections and gates. Nothing is computed, so nothing can differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

LINE, BLOCK, PROGRAMS = 128, 1024, 32


def fetch(weight: Tensor) -> None:
    """Ask the cache for all of `weight`, and to keep it."""
    lines = weight.numel() * weight.element_size() // LINE
    _fetch[(min(PROGRAMS, triton.cdiv(lines, BLOCK)),)](
        weight, lines, LINE // weight.element_size(), BLOCK, num_warps=4
    )


@triton.jit
def _fetch(weight, lines, PER_LINE: tl.constexpr, BLOCK: tl.constexpr):
    for first in range(tl.program_id(0) * BLOCK, lines, tl.num_programs(0) * BLOCK):
        line = tl.minimum(first + tl.arange(0, BLOCK), lines - 1).to(tl.int64)
        tl.inline_asm_elementwise(
            "prefetch.global.L2::evict_last [$1]; mov.u32 $0, 0;",
            "=r,l",
            [(weight + line * PER_LINE).to(tl.int64)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
