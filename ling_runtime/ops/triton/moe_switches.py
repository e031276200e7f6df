"""The mixture-of-experts layer with one thing undone at a time, to measure what each is worth in the whole step.

None of these is what a step should run: they put back a kernel or a rounding that `moe=triton` does without. All but
the combine leave its bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from ling_runtime.ops.moe_layer import shared_expert
from ling_runtime.ops.registry import variant
from ling_runtime.ops.triton.align import by_counts, by_pairs
from ling_runtime.ops.triton.dense import activate
from ling_runtime.ops.triton.moe import expert_hidden, expert_out, settle
from ling_runtime.ops.triton.moe_layer import WHY, moe_triton
from ling_runtime.ops.triton.norm import add_rms_norm_triton

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ling_runtime.ops.moe_layer import MoeWeights
    from ling_runtime.ops.registry import Kernels

    Planner = Callable[[Tensor, int | None, int], Tensor]

COMBINED = 512
"""Columns of a combining program."""
LONGEST = 64
"""Rows up to which there is room for a plan; above, nothing is undone."""


@variant("moe", "triton_align_pairs", "rounding", WHY)
def moe_aligned_by_pairs(
    x: Tensor, residual: Tensor, norm: Tensor, eps: float, rows: int, weights: MoeWeights, kernels: Kernels
) -> tuple[Tensor, Tensor]:
    """Pairs planned on the pair axis, in a launch of its own."""
    return _layer(x, residual, norm, eps, rows, weights, kernels, planner=by_pairs)


@variant("moe", "triton_align_two", "rounding", WHY)
def moe_aligned_by_counts(
    x: Tensor, residual: Tensor, norm: Tensor, eps: float, rows: int, weights: MoeWeights, kernels: Kernels
) -> tuple[Tensor, Tensor]:
    """Pairs planned by counting experts, in two launches."""
    return _layer(x, residual, norm, eps, rows, weights, kernels, planner=by_counts)


@variant("moe", "triton_swiglu_apart", "rounding", WHY)
def moe_activated_apart(
    x: Tensor, residual: Tensor, norm: Tensor, eps: float, rows: int, weights: MoeWeights, kernels: Kernels
) -> tuple[Tensor, Tensor]:
    """The activation as a kernel between the two products, from gate|up in fp32."""
    return _layer(x, residual, norm, eps, rows, weights, kernels, apart=True)


@variant("moe", "triton_combine_rounded", "rounding", f"{WHY}; each weighted expert, their sum and its scale round")
def moe_combined_with_roundings(
    x: Tensor, residual: Tensor, norm: Tensor, eps: float, rows: int, weights: MoeWeights, kernels: Kernels
) -> tuple[Tensor, Tensor]:
    """The combine as a kernel of its own outside the chain of dependent launches, then residual and norm."""
    return _layer(x, residual, norm, eps, rows, weights, kernels, rounded=True)


def _layer(
    x: Tensor, residual: Tensor, norm: Tensor, eps: float, rows: int, weights: MoeWeights, kernels: Kernels, *,
    planner: Planner | None = None, apart: bool = False, rounded: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As `moe_triton`, with what the switches put back."""
    if rows > LONGEST:
        return moe_triton(x, residual, norm, eps, rows, weights, kernels)
    ids, chosen = kernels["router"](x, weights.router)
    ids, chosen = ids[:rows].contiguous(), chosen[:rows].float().contiguous()
    shared = weights.experts if weights.joined else None
    extra = None if weights.joined else shared_expert(x, weights, kernels)
    limits = (weights.limit, weights.shared_limit)
    plan = planner(ids, shared, weights.experts) if planner else None
    hidden = expert_hidden(x, ids, weights.gate_up, limits, shared, plan=plan, raw=apart)
    if apart:
        parts = hidden[:, None] if rows == 1 else hidden[None]
        hidden = activate(parts, x.dtype, limits, ids.shape[1] if weights.joined else None)
    out = expert_out(hidden, ids, weights.down, limits, shared, plan=plan, active=apart)
    if rounded:
        part = _combine(out, chosen, extra, weights.router.scale, len(x))
        return add_rms_norm_triton(weights.ranks.reduce(part), residual, norm, eps)
    return settle(out, chosen, residual, norm, eps, extra, weights.ranks)


def _combine(out: Tensor, weights: Tensor, extra: Tensor | None, scale: float, rows: int) -> Tensor:
    """out [n, s, D] times weights [n, k] -> [rows, D], each expert's part, their sum and the scaled sum rounded; what
    lies in the slot past k and `extra` are added to that.
    """
    total = out.new_zeros(rows, out.shape[2]) if rows > len(out) else out.new_empty(rows, out.shape[2])
    width, slots = out.shape[2], out.shape[1]
    _combine_rounded[(len(out), triton.cdiv(width, COMBINED))](
        out, weights, out if extra is None else extra, total, scale, width, weights.shape[1], slots, COMBINED,
        extra is not None, num_warps=4,
    )  # fmt: skip
    return total


@triton.jit
def _combine_rounded(
    out, weights, extra, total, scale, D: tl.constexpr, TOP: tl.constexpr, S: tl.constexpr, BN: tl.constexpr,
    EXTRA: tl.constexpr,
):  # fmt: skip
    row, column = tl.program_id(0), tl.program_id(1) * BN + tl.arange(0, BN)
    inside = column < D
    dtype = total.dtype.element_ty
    value = tl.zeros((BN,), tl.float32)
    for s in tl.static_range(TOP):
        part = tl.load(out + (row * S + s) * D + column, mask=inside, other=0.0).to(tl.float32)
        value += (part * (tl.load(weights + row * TOP + s) / scale)).to(dtype).to(tl.float32)
    value = (value.to(dtype).to(tl.float32) * scale).to(dtype).to(tl.float32)
    if S > TOP:
        value += tl.load(out + (row * S + TOP) * D + column, mask=inside, other=0.0).to(tl.float32)
    if EXTRA:
        value += tl.load(extra + row * D + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(total + row * D + column, value.to(dtype), mask=inside)
