"""Operators over a prompt: many rows of one request, all of them kept, of which only the last is asked for a token.

They are operators of their own because a prompt wants other tiles than a window of a few rows, and because a call
count of their own proves that they ran. The references compute a prompt as a long window, by the variants chosen for
windows. The surprise is what decides which path a row takes: never how many rows there are, only whether they are a
prompt's. So the last, short chunk of a prompt runs the same kernels as the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F

from ling_runtime.ops.moe_layer import moe_layer
from ling_runtime.ops.registry import variant

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.memory.latent import LatentView
    from ling_runtime.memory.window import Window
    from ling_runtime.ops.kda import KdaEnd, KdaStaged, KdaState, KdaWeights
    from ling_runtime.ops.mla import MlaWeights
    from ling_runtime.ops.moe_layer import MoeWeights
    from ling_runtime.ops.registry import Kernels
    from ling_runtime.ops.router import RouterWeights


PROMPT_CHUNK = 64
"""Rows of a chunk of the recurrence, and what parts of a prompt are multiples of where `prompt_kda` is not the
reference: a part then begins where a chunk does, so a chunk is computed whole or not at all."""

LONGEST_WINDOW = 64
"""Rows up to which a prompt goes through a window's experts, which are read again for each tile of rows."""

PROMPT_VARIANTS = {
    "prompt_linear": "triton",
    "prompt_router": "triton",
    "prompt_moe": "triton",
    "prompt_kda": "triton",
    "prompt_mla": "triton",
}
"""What computes prompts on a device (docs/prefill.md)."""


def part_of(chunk: int, kernels: Kernels) -> int:
    """The rows of a prompt that are computed at a time, where at most `chunk` are asked for."""
    if kernels.variant_of("prompt_kda") == "reference":
        return chunk
    return max(PROMPT_CHUNK, chunk // PROMPT_CHUNK * PROMPT_CHUNK)


def project(kernels: Kernels, prompt: bool, x: Tensor, weight: Tensor) -> Tensor:
    """x [R, K] @ weight [N, K]^T -> [R, N], as it is done for a prompt's rows or for others."""
    if prompt:
        return kernels["prompt_linear"](x, weight, kernels)  # type: ignore[no-any-return]
    return kernels["linear"](x, weight)  # type: ignore[no-any-return]


@variant("prompt_linear")
def linear_as_window(x: Tensor, weight: Tensor, kernels: Kernels) -> Tensor:
    """x [R, K] @ weight [N, K]^T -> [R, N]; R a whole number of tiles."""
    return kernels["linear"](x, weight)  # type: ignore[no-any-return]


@variant("prompt_linear", "library", "rounding", "the library blocks by the number of rows: bits depend on the chunk")
def linear_library(x: Tensor, weight: Tensor, kernels: Kernels) -> Tensor:  # noqa: ARG001 - the operator's signature
    return F.linear(x, weight)


@variant("prompt_router")
def route_as_window(x: Tensor, weights: RouterWeights, kernels: Kernels) -> tuple[Tensor, Tensor]:
    """x [R, D] -> (expert ids [R, k], weights [R, k] wide)."""
    return kernels["router"](x, weights)  # type: ignore[no-any-return]


@variant("prompt_moe")
def moe_as_window(
    x: Tensor, residual: Tensor, norm: Tensor, eps: float, rows: int, weights: MoeWeights, kernels: Kernels
) -> tuple[Tensor, Tensor]:
    """x [R, D], of which the first `rows` are real -> (norm of the sum with the residual, the sum)."""
    if rows > LONGEST_WINDOW and kernels.variant_of("moe") != "reference":
        return moe_layer(x, residual, norm, eps, rows, weights, kernels)
    return kernels["moe"](x, residual, norm, eps, rows, weights, kernels)  # type: ignore[no-any-return]


@variant("prompt_kda")
def kda_as_window(
    projected: Tensor, window: Window, weights: KdaWeights, state: KdaState, kernels: Kernels
) -> tuple[Tensor, KdaStaged | KdaEnd]:
    """projected [R, 5 H d + H] holding q|k|v|f|gate|beta -> (rows [R, D] of the output projection, staging)."""
    return kernels["kda_window"](projected, window, weights, state, kernels["linear"])  # type: ignore[no-any-return]


@variant("prompt_mla")
def mla_as_window(projected: Tensor, cache: LatentView, weights: MlaWeights, kernels: Kernels) -> Tensor:
    """projected [R, H (nope + p) + r + p + H] holding q|latent|k_rope|gate -> o [R, H v]; writes the cache."""
    return kernels["mla_window"](projected, cache, weights)  # type: ignore[no-any-return]
