"""A mixture-of-experts layer in five launches: gate parts, selection, gate-up, down, sum with norm.

The shared expert rides along as one more expert that every row chooses with weight 1, so it costs no launch. What it
changes against the reference: activations stay in fp32 until the down product, and the shared output joins the wide sum
instead of being added after its rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ling_runtime.ops.moe_layer import shared_expert
from ling_runtime.ops.registry import variant
from ling_runtime.ops.triton.moe import expert_hidden, expert_out, settle

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.ops.moe_layer import MoeWeights
    from ling_runtime.ops.registry import Kernels

WHY = "activation in fp32, shared expert inside the wide sum, K summed front to back"


@variant("moe", "triton", "rounding", WHY)
def moe_triton(
    x: Tensor, residual: Tensor, norm: Tensor, eps: float, rows: int, weights: MoeWeights, kernels: Kernels
) -> tuple[Tensor, Tensor]:
    """x [R, D], of which the first `rows` are real -> (norm of the sum with the residual, the sum); any number of them,
    for what decides a row's path must not be how many others there are.
    """
    ids, chosen = kernels["router"](x, weights.router)
    return routed(x, residual, norm, eps, rows, ids, chosen, weights, kernels)


def routed(
    x: Tensor, residual: Tensor, norm: Tensor, eps: float, rows: int, ids: Tensor, chosen: Tensor,
    weights: MoeWeights, kernels: Kernels,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The same behind the router: rows x [R, D] go to `ids` [R, k] with weights `chosen` [R, k]."""
    ids, chosen = ids[:rows].contiguous(), chosen[:rows].float().contiguous()
    shared = weights.experts if weights.joined else None
    extra = None if weights.joined else shared_expert(x, weights, kernels)
    limits = (weights.limit, weights.shared_limit)
    hidden = expert_hidden(x, ids, weights.gate_up, limits, shared)
    return settle(
        expert_out(hidden, ids, weights.down, limits, shared), chosen, residual, norm, eps, extra, weights.ranks
    )
