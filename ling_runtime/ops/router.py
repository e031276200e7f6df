"""The router: which experts a row goes to, and with what weight.

Selection adds a bias that the weights do not have. Ties go to the lowest index, by stable sorts, because an
unspecified order is a difference between two equal runs. The gate's precision is the post's largest single gain and
rounds: routing may change, so the bf16 gate is declared as what it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from ling_runtime.ops.activation import sigmoid
from ling_runtime.ops.linear import linear
from ling_runtime.ops.norm import widen
from ling_runtime.ops.registry import variant

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class RouterWeights:
    gate: Tensor  # [E, D], fp32 or bf16
    bias: Tensor  # [E] fp32, for selection only
    groups: int
    kept_groups: int
    experts_per_row: int
    scale: float

    @cached_property
    def narrow_gate(self) -> Tensor:
        """The gate in bf16, made once: a captured step must not convert it every time.

        It is there when this returns: kernels may read weights before they wait for the kernel in front of them.
        """
        gate = self.gate.bfloat16()
        if gate.is_cuda:
            torch.cuda.current_stream(gate.device).synchronize()
        return gate


@variant("router")
def route(x: Tensor, weights: RouterWeights) -> tuple[Tensor, Tensor]:
    """x [R, D] -> (expert ids [R, k], weights [R, k] wide): sigmoid scores, fp32 gate."""
    gate = widen(weights.gate)
    return select(linear(x.to(gate.dtype), gate), weights)


@variant("router", "bf16", "rounding", "gate weights and rows in bf16: near ties may route elsewhere")
def route_bf16(x: Tensor, weights: RouterWeights) -> tuple[Tensor, Tensor]:
    return select(linear(x.bfloat16(), weights.narrow_gate).float(), weights)


def select(logits: Tensor, weights: RouterWeights) -> tuple[Tensor, Tensor]:
    """Grouped top-k of logits [R, E]: best groups by their two best biased scores, then the best experts in them."""
    scores = sigmoid(logits)
    biased = scores + weights.bias
    grouped = biased.view(biased.shape[0], weights.groups, -1)
    group_score = grouped.topk(min(2, grouped.shape[-1]), dim=-1).values.sum(-1)
    order = group_score.argsort(dim=-1, descending=True, stable=True)
    dropped = order[:, weights.kept_groups :].unsqueeze(-1).expand(-1, -1, grouped.shape[-1])
    masked = grouped.scatter(1, dropped, -torch.inf).flatten(1)
    ids = masked.argsort(dim=-1, descending=True, stable=True)[:, : weights.experts_per_row]
    chosen = scores.gather(1, ids)
    return ids, chosen / (chosen.sum(-1, keepdim=True) + 1e-20) * weights.scale
