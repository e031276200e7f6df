"""A gated feed-forward without routing as one operator: the dense layers, and a shared expert that stands apart.

It exists so that a variant may fuse the activation with the products around it. The reference is their composition,
with the products of the chosen `linear`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ling_runtime.ops.activation import swiglu
from ling_runtime.ops.registry import variant

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.ops.registry import Kernels


@variant("dense_mlp")
def dense_mlp(x: Tensor, gate_up: Tensor, down: Tensor, limit: float | None, kernels: Kernels) -> Tensor:
    """x [R, D] through gate_up [2F, D] and down [D, F] -> [R, D]; `limit` clamps the activation."""
    linear = kernels["linear"]
    return linear(swiglu(linear(x, gate_up), limit), down)  # type: ignore[no-any-return]
