"""Programmatic dependent launch (PDL) for every Triton kernel of a step, as one switch with four positions.

Off, a kernel starts when the one before it has ended. With PDL it starts as soon as all of that one's programs have
said so (`late`: at their end, `early`: right after their own wait) and waits inside; `warm` is early, and fetches the
kernel's own weights into the cache before the wait. The surprise is why that is safe: the wait is for the whole chain
behind, because every kernel here waits before it reads or writes anything but weights; a kernel that skipped its wait
would break its successor, not itself.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import triton
import triton.language as tl

if TYPE_CHECKING:
    from collections.abc import Iterator

Pdl = Literal["off", "late", "early", "warm"]
_LEVELS: dict[Pdl, int] = {"off": 0, "late": 1, "early": 2, "warm": 3}
_mode: list[Pdl] = ["off"]


@contextmanager
def pdl(mode: Pdl) -> Iterator[None]:
    """Launches inside use `mode`; a graph captured inside keeps it."""
    _mode.append(mode)
    try:
        yield
    finally:
        _mode.pop()


def launch() -> dict[str, Any]:
    """Keyword arguments of a launch under the mode in force."""
    level = _LEVELS[_mode[-1]]
    return {"PDL": level, "launch_pdl": True} if level else {"PDL": 0}


@triton.jit
def enter(PDL: tl.constexpr):
    """Before the first dependent access: wait for the chain behind; `early` lets the next kernel start here."""
    if PDL > 0:
        tl.extra.cuda.gdc_wait()
    if PDL >= 2:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def leave(PDL: tl.constexpr):
    """At a program's end: `late` lets the next kernel start here."""
    if PDL == 1:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def warm(weight, columns, K: tl.constexpr, LINES: tl.constexpr, PDL: tl.constexpr):
    """Ask the cache for rows `columns` of weight [N, K], a line of 128 bytes at a time; LINES a power of two."""
    if PDL == 3:
        PER_LINE: tl.constexpr = 128 // (weight.dtype.element_ty.primitive_bitwidth // 8)
        line = tl.minimum(tl.arange(0, LINES) * PER_LINE, K - 1)
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
            "=r,l",
            [(weight + columns[:, None] * K + line[None, :]).to(tl.int64)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


def lines_of(inner: int, element_size: int) -> int:
    """Cache lines of one weight row, as the power of two that `warm` needs."""
    return 1 << max(0, (-(-inner * element_size // 128) - 1).bit_length())
