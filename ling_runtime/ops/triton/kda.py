"""The KDA window in Triton: rows made ready, the recurrence walked row by row, the output projection.

Every row is reached by the same sequence of single steps, so its bits are the same in every window, and a state stored
between two steps changes nothing: a captured step keeps, beside the state at the last chunk boundary, the one where
its last window began (`lead`), and walks again only the rows that were accepted since. The surprise is that few rows
are better walked than solved: a step is a reduction inside one warp, while the chunk form's small products and
triangular solve cost a barrier each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from triton.runtime import driver

from ling_runtime.config import TILE, WINDOW_ROWS
from ling_runtime.ops.kda import KdaStaged, kda_window
from ling_runtime.ops.registry import variant
from ling_runtime.ops.triton.kda_out import normed_linear
from ling_runtime.ops.triton.kda_rows import ready
from ling_runtime.ops.triton.kda_walk import walk
from ling_runtime.ops.triton.launch import launch
from ling_runtime.ops.triton.linear import INTERPRETED

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ling_runtime.memory.window import Window
    from ling_runtime.ops.kda import KdaState, KdaWeights, Linear

VALUE_TILES = {9: 8, 10: 4}
"""Columns of the state per program, which is one warp, by major compute capability: 9 as measured on an H200
(docs/gpu_switches.md), 10 as the post measured its own kernel on a B200."""
ALONE = 2
"""Rows up to which the walk makes them ready itself: fewer cost less so than a kernel before it."""
TAPS = 4
"""The width of the convolution whose window a program keeps in registers."""
WHY = "row by row from the chunk's start instead of the chunk form"


@variant("kda_window", "triton", "rounding", WHY)
def kda_window_triton(
    projected: Tensor,
    window: Window,
    weights: KdaWeights,
    state: KdaState,
    linear: Linear,
    value_tile: int | None = None,
    out: Callable[[Tensor, Tensor, KdaWeights, int], Tensor] = normed_linear,
) -> tuple[Tensor, KdaStaged]:
    """projected [R, 5 H d + H] holding q|k|v|f|gate|beta -> (rows [R, D] of the output projection, staging).

    `out` norms and projects the gated rows. With a `lead`, all but `projected` is read before the wait of dependent
    launches: the launch right in front may not have written it.
    """
    if window.rows > WINDOW_ROWS or window.counts is not None or weights.conv.shape[1] != TAPS:
        return kda_window(projected, window, weights, state, linear)
    assert state.lead is None or state.index is not None, "an index made here would be written right in front"
    heads, width = state.state.shape[1:3]
    index = state.index if state.index is not None else torch.arange(window.batch, device=projected.device)
    staged = state.staging or _staging(projected, window, state)
    if state.staging is None:
        staged.states[:, 0] = state.state
    lead, walked = state.lead or (state.state, index)
    starts, value_tile = window.start_index, min(value_tile or best_value_tile(), width)
    gated = projected.new_empty(projected.shape[0], heads * width)
    squares = torch.empty(projected.shape[0], heads, width // value_tile, dtype=torch.float32, device=projected.device)
    dots = torch.empty(projected.shape[0], heads, dtype=torch.float32, device=projected.device)
    alone = window.rows <= ALONE
    if not alone:
        ready[(window.rows, heads, window.batch)](
            projected, weights.conv, weights.gate_scale, weights.gate_bias, state.conv, index, starts, staged.conv,
            staged.grid, dots, window.rows, window.chunks, weights.lower_bound, heads, width, TILE,
            **launch(), num_warps=1, enable_fp_fusion=False,
        )  # fmt: skip
    walk[(width // value_tile, heads, window.batch)](
        projected, weights.conv, weights.gate_scale, weights.gate_bias, weights.o_norm, state.conv,
        state.ring, state.state, lead, walked, index, starts, staged.conv, staged.grid, staged.states, dots, gated,
        squares, window.rows, window.chunks, window.closed_chunks, weights.lower_bound, heads, width,
        value_tile, TILE, state.lead is not None, alone, **launch(), num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
    return out(gated, squares, weights, window.real_rows), staged


def best_value_tile() -> int:
    """Of the card that kernels are compiled for; Hopper's where none is known better."""
    major = 9 if INTERPRETED else driver.active.get_current_target().arch // 10
    return VALUE_TILES.get(major, VALUE_TILES[9])


def _staging(projected: Tensor, window: Window, state: KdaState) -> KdaStaged:
    """Fresh staging: what a prefix commit can need, as the reference makes it."""
    batch, heads, width = window.batch, *state.state.shape[1:3]
    conv = projected.new_empty(batch, TAPS - 1 + window.rows, 3 * heads * width)
    grid = state.ring.new_zeros(batch, window.chunks, TILE, heads, 4 * width + 1)
    return KdaStaged(conv, grid, state.state.new_empty(batch, window.closed_chunks + 1, heads, width, width))
