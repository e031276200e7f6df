"""Programmatic dependent launch (PDL) for every Triton kernel of a step, as one switch with three positions.

Off, a kernel starts when the one before it has ended. With PDL it starts as soon as all of that one's programs have
said so (`late`: at their end, `early`: right after their own wait) and waits inside. The surprise is why that is safe:
the wait is for the whole chain behind, because every program of every kernel here waits before it writes, or reads what
the kernel in front of it writes; a kernel that skipped its wait would break its successor, not itself.

What a kernel may read before its wait follows: weights, and whatever was written before the kernel in front of it. Its
programs start when all of that one's have waited, so all that stands in front of that one has ended; one that was
launched without PDL, as torch's are, has not even begun before. (`experiments.compile_check` looks for the waits.)
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from collections.abc import Iterator

Pdl = Literal["off", "late", "early"]
WRITTEN = tl.constexpr(".cg")
"""Modifier of loads before the wait of what other kernels have written: that is in L2 by then, while a
multiprocessor's own cache may hold what was there before."""
_LEVELS: dict[Pdl, int] = {"off": 0, "late": 1, "early": 2}
_mode: list[Pdl] = ["off"]


@contextmanager
def pdl(mode: Pdl) -> Iterator[None]:
    """Launches inside use `mode`; a graph captured inside keeps it."""
    _mode.append(mode)
    try:
        yield
    finally:
        _mode.pop()


def fastest() -> Pdl:
    """The mode that was fastest where it was measured (docs/gpu.md); off where the card does not have it."""
    return "early" if torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0) else "off"


def level() -> int:
    """The mode in force, as kernels are told it."""
    return _LEVELS[_mode[-1]]


def launch() -> dict[str, Any]:
    """Keyword arguments of a launch under the mode in force."""
    return {"PDL": level(), "launch_pdl": True} if level() else {"PDL": 0}


@triton.jit
def enter(PDL: tl.constexpr):
    """Before the first dependent access: wait for the chain behind; `early` lets the next kernel start here."""
    if PDL > 0:
        tl.extra.cuda.gdc_wait()
    if PDL == 2:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def leave(PDL: tl.constexpr):
    """At a program's end: `late` lets the next kernel start here."""
    if PDL == 1:
        tl.extra.cuda.gdc_launch_dependents()
