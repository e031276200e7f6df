"""A mixture-of-experts layer from the end of attention on, as one operator.

It exists so that a variant may fuse the norm in front of the layer with the router. The reference is the two operators
one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ling_runtime.ops.registry import variant

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.ops.moe_layer import MoeWeights
    from ling_runtime.ops.registry import Kernels


@variant("moe_block")
def moe_block(
    x: Tensor, residual: Tensor, entry: Tensor, norm: Tensor, eps: float, rows: int, weights: MoeWeights,
    kernels: Kernels,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """x, residual [R, D] -> (norm of the layer's sum with its residual, the sum).

    `entry` is the norm before the layer and `norm` the one behind it; `rows` of R are real.
    """
    normed, total = kernels["add_rms_norm"](x, residual, entry, eps)
    return kernels["moe"](normed, total, norm, eps, rows, weights, kernels)  # type: ignore[no-any-return]
