"""Dense and mixture-of-experts feed-forward layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ling_runtime.ops.activation import swiglu
from ling_runtime.ops.linear import pad_rows
from ling_runtime.ops.router import RouterWeights

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.config import ModelConfig
    from ling_runtime.memory.caches import Pass
    from ling_runtime.model.packing import Packer
    from ling_runtime.ops.registry import Kernels


class DenseMlp:
    def __init__(self, weights: Packer, limit: float | None, kernels: Kernels) -> None:
        self._linear, self._limit = kernels["linear"], limit
        self._gate_up = weights.stack("gate_proj", "up_proj")
        self._down = weights("down_proj.weight")

    def __call__(self, x: Tensor, pass_: Pass | None = None) -> Tensor:  # noqa: ARG002 - same call as MoeMlp
        return self._linear(swiglu(self._linear(x, self._gate_up), self._limit), self._down)  # type: ignore[no-any-return]


class MoeMlp:
    """Routed experts plus the shared one; padded rows are not routed, they would only read weights."""

    def __init__(self, config: ModelConfig, weights: Packer, layer: int, kernels: Kernels) -> None:
        routed_limit, shared_limit = config.swiglu_limits(layer)
        self._route, self._align = kernels["router"], kernels["moe_align"]
        self._run, self._combine = kernels["moe_experts"], kernels["moe_combine"]
        self._limit, self._experts = routed_limit, config.num_experts
        self._router = RouterWeights(
            gate=weights.wide("gate.weight"),
            bias=weights.wide("gate.expert_bias"),
            groups=config.n_group,
            kept_groups=config.topk_group,
            experts_per_row=config.num_experts_per_tok,
            scale=config.routed_scaling_factor,
        )
        experts = [weights.at(f"experts.{e}") for e in range(config.num_experts)]
        self._gate_up = torch.stack([e.stack("gate_proj", "up_proj") for e in experts])
        self._down = torch.stack([e("down_proj.weight") for e in experts])
        shared = weights.at("shared_experts")
        self._shared = DenseMlp(shared, shared_limit, kernels) if config.num_shared_experts else None

    def __call__(self, x: Tensor, pass_: Pass) -> Tensor:
        rows = pass_.window.real_rows
        ids, weights = self._route(x, self._router)
        ids, weights = ids[:rows], weights[:rows]
        pairs = x[:rows].repeat_interleave(ids.shape[1], dim=0)
        out = self._run(pairs, self._align(ids, self._experts), self._gate_up, self._down, self._limit)
        routed = pad_rows(self._combine(out.unflatten(0, ids.shape), weights))
        return routed + self._shared(x, pass_) if self._shared else routed
