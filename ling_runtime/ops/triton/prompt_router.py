"""The router over a prompt's rows in Triton: one gate product in whole rows, then the selection of short windows.

The gate's weights are fp32 and stay so: where rows are bf16, each weight is taken apart into three bf16 numbers that
add up to it, so three tensor-core products of exact terms make what one product of fp32 would, at half the price of
the tensor core's own three-product form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from ling_runtime.ops.registry import variant
from ling_runtime.ops.triton.launch import launch
from ling_runtime.ops.triton.linear import product
from ling_runtime.ops.triton.prompt_linear import TOGETHER, WideTiles, place_of, tiles_of
from ling_runtime.ops.triton.router import _select, gate_form

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.ops.registry import Kernels
    from ling_runtime.ops.router import RouterWeights

GATE_TILES = WideTiles(128, 128, 32, 8, 3)


@variant("prompt_router", "triton", "rounding", "gate products are added over K front to back")
def route_prompt(
    x: Tensor, weights: RouterWeights, kernels: Kernels, tiles: WideTiles = GATE_TILES  # noqa: ARG001
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """x [R, D] -> (expert ids [R, k], weights [R, k] fp32)."""
    (rows, inner), experts, kept = x.shape, weights.gate.shape[0], weights.experts_per_row
    assert experts & (experts - 1) == 0 and experts // weights.groups >= 2, "selection works on powers of two"  # noqa: PT018
    tiles = tiles_of(x.dtype, tiles)
    logits = torch.empty(rows, experts, dtype=torch.float32, device=x.device)
    _gates[(triton.cdiv(rows, tiles.rows) * triton.cdiv(experts, tiles.columns),)](
        x, weights.gate, logits, rows, experts, inner, tiles.rows, tiles.columns, tiles.depth, TOGETHER,
        gate_form(x, weights.gate), num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    ids = torch.empty(rows, kept, dtype=torch.int64, device=x.device)
    chosen = torch.empty(rows, kept, dtype=torch.float32, device=x.device)
    _select[(rows,)](
        logits, weights.bias, ids, chosen, rows, weights.scale, experts, weights.groups, weights.kept_groups, kept,
        triton.next_power_of_2(kept), 1, **launch(), num_warps=1,
    )  # fmt: skip
    return ids, chosen


@triton.jit(do_not_specialize=["rows"])
def _gates(
    x, gate, logits, rows, E: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    TOGETHER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """logits [R, E] = x @ gate^T with every bit of the fp32 gate."""
    down, right = place_of(tl.program_id(0), tl.cdiv(rows, BM), tl.cdiv(E, BN), TOGETHER)
    row, column, place = down * BM + tl.arange(0, BM), right * BN + tl.arange(0, BN), tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        inside = k + place < K
        known = (row < rows)[:, None] & inside[None, :]
        a = tl.load(x + row[:, None] * K + (k + place)[None, :], mask=known, other=0.0)
        b = tl.load(gate + (column % E)[None, :] * K + (k + place)[:, None], mask=inside[:, None], other=0.0)
        total = product(a, b, total, PRECISION)
    known = (row < rows)[:, None] & (column < E)[None, :]
    tl.store(logits + row[:, None] * E + column[None, :], total, mask=known)
