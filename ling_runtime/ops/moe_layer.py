"""The whole feed-forward of a mixture-of-experts layer as one operator, to the norm behind it.

It exists so that a variant may fuse across the smaller operators. The reference is their composition, through the
chosen variant of each; the shared expert's weights lie behind the routed ones where their shapes agree, as one expert
more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ling_runtime.ops.linear import pad_rows
from ling_runtime.ops.registry import variant
from ling_runtime.parallel.communicator import ALONE

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.ops.registry import Kernels
    from ling_runtime.ops.router import RouterWeights
    from ling_runtime.parallel.communicator import Communicator


@dataclass(frozen=True, kw_only=True)
class MoeWeights:
    """E routed experts of width F, and one shared expert or none (`shared_up` None).

    `joined` says that the shared expert is entry E of `gate_up` and `down`, which `shared_up` and `shared_down` view.
    """

    router: RouterWeights
    gate_up: Tensor  # [E (+ 1), 2F, D]
    down: Tensor  # [E (+ 1), D, F]
    experts: int
    limit: float | None
    shared_up: Tensor | None  # [2Fs, D]
    shared_down: Tensor | None  # [D, Fs]
    shared_limit: float | None
    joined: bool
    ranks: Communicator = ALONE
    """Who has the other parts of F: what a layer gives is summed over them, before residual and norm."""


@variant("moe")
def moe_layer(
    x: Tensor, residual: Tensor, norm: Tensor, eps: float, rows: int, weights: MoeWeights, kernels: Kernels
) -> tuple[Tensor, Tensor]:
    """x [R, D], of which the first `rows` are real -> (norm of the sum with the residual, the sum).

    Padded rows are not routed, they would only read weights.
    """
    ids, chosen = kernels["router"](x, weights.router)
    ids, chosen = ids[:rows], chosen[:rows]
    pairs = x[:rows].repeat_interleave(ids.shape[1], dim=0)
    alignment = kernels["moe_align"](ids, weights.experts)
    out = kernels["moe_experts"](pairs, alignment, weights.gate_up, weights.down, weights.limit)
    routed = pad_rows(kernels["moe_combine"](out.unflatten(0, ids.shape), chosen))
    shared = shared_expert(x, weights, kernels)
    total = routed if shared is None else routed + shared
    return kernels["add_rms_norm"](weights.ranks.reduce(total), residual, norm, eps)  # type: ignore[no-any-return]


def shared_expert(x: Tensor, weights: MoeWeights, kernels: Kernels) -> Tensor | None:
    """The shared expert alone on x [R, D]; None where the layer has none."""
    if weights.shared_up is None:
        return None
    return kernels["dense_mlp"](  # type: ignore[no-any-return]
        x, weights.shared_up, weights.shared_down, weights.shared_limit, kernels
    )
