"""The KDA window with other value tiles than the one it runs with: the post's curve over BV as variants of a step.

A tile cuts the state's value columns, and no sum runs over those: every tile leaves the same bits up to the output
projection, whose norm adds the squares of as many parts as there are tiles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ling_runtime.ops.registry import variant
from ling_runtime.ops.triton.kda import WHY, kda_window_triton

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ling_runtime.memory.window import Window
    from ling_runtime.ops.kda import KdaStaged, KdaState, KdaWeights, Linear

VALUE_TILES = (4, 8, 16, 32, 64, 128)
"""The post's values. Each program is one warp, whose registers hold 32 columns and spill beyond."""


def in_tiles_of(columns: int) -> Callable[..., tuple[Tensor, KdaStaged]]:
    def kda_window_tiled(
        projected: Tensor, window: Window, weights: KdaWeights, state: KdaState, linear: Linear
    ) -> tuple[Tensor, KdaStaged]:
        return kda_window_triton(projected, window, weights, state, linear, columns)

    return kda_window_tiled


for _tile in VALUE_TILES:
    variant("kda_window", f"triton_bv{_tile}", "rounding", WHY)(in_tiles_of(_tile))
