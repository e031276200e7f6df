"""Dense and mixture-of-experts feed-forward layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ling_runtime.ops.activation import swiglu
from ling_runtime.ops.moe_layer import MoeWeights
from ling_runtime.ops.prompt import project
from ling_runtime.ops.router import RouterWeights

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.config import ModelConfig
    from ling_runtime.memory.caches import Pass
    from ling_runtime.model.packing import Packer
    from ling_runtime.ops.registry import Kernels
    from ling_runtime.parallel.communicator import Communicator


class DenseMlp:
    def __init__(self, weights: Packer, limit: float | None, kernels: Kernels) -> None:
        self._run, self._kernels, self._limit = kernels["dense_mlp"], kernels, limit
        self._gate_up = weights.stack("gate_proj", "up_proj")
        self._down = weights("down_proj.weight")

    def __call__(self, x: Tensor, *, prompt: bool = False) -> Tensor:
        if not prompt:
            return self._run(x, self._gate_up, self._down, self._limit, self._kernels)  # type: ignore[no-any-return]
        hidden = swiglu(project(self._kernels, prompt, x, self._gate_up), self._limit)
        return project(self._kernels, prompt, hidden, self._down)


class MoeMlp:
    """Routed experts plus the shared one, which is packed behind them where its shape is theirs."""

    def __init__(self, config: ModelConfig, weights: Packer, layer: int, kernels: Kernels, ranks: Communicator) -> None:
        self._run, self._kernels, self._eps = kernels["moe_block"], kernels, config.rms_norm_eps
        limit, shared_limit = config.swiglu_limits(layer)
        experts = [weights.at(f"experts.{e}") for e in range(config.num_experts)]
        shared = [weights.at("shared_experts")] if config.num_shared_experts else []
        inner = config.moe_shared_expert_intermediate_size * config.num_shared_experts
        joined = bool(shared) and inner == config.moe_intermediate_size
        packed = experts + (shared if joined else [])
        gate_up = torch.stack([e.stack("gate_proj", "up_proj") for e in packed])
        down = torch.stack([e("down_proj.weight") for e in packed])
        pair = (gate_up[-1], down[-1]) if joined else self._apart(shared)
        self._weights = MoeWeights(
            router=router_weights(config, weights),
            gate_up=gate_up,
            down=down,
            experts=config.num_experts,
            limit=limit,
            shared_up=pair[0],
            shared_down=pair[1],
            shared_limit=shared_limit,
            joined=joined,
            ranks=ranks,
        )

    @staticmethod
    def _apart(shared: list[Packer]) -> tuple[Tensor, Tensor] | tuple[None, None]:
        return (shared[0].stack("gate_proj", "up_proj"), shared[0]("down_proj.weight")) if shared else (None, None)

    def __call__(self, x: Tensor, residual: Tensor, entry: Tensor, norm: Tensor, pass_: Pass) -> tuple[Tensor, Tensor]:
        """Rows of attention and the residual before it -> (norm of the layer's sum with its residual, the sum)."""
        rows, kernels = pass_.window.real_rows, self._kernels
        if not pass_.window.prompt:
            return self._run(x, residual, entry, norm, self._eps, rows, self._weights, kernels)  # type: ignore[no-any-return]
        normed, residual = kernels["add_rms_norm"](x, residual, entry, self._eps)
        return kernels["prompt_moe"](normed, residual, norm, self._eps, rows, self._weights, kernels)  # type: ignore[no-any-return]


def router_weights(config: ModelConfig, weights: Packer) -> RouterWeights:
    return RouterWeights(
        gate=weights.wide("gate.weight"),
        bias=weights.wide("gate.expert_bias"),
        groups=config.n_group,
        kept_groups=config.topk_group,
        experts_per_row=config.num_experts_per_tok,
        scale=config.routed_scaling_factor,
    )
