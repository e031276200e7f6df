"""The gated feed-forward in Triton: the activation as one kernel, or for one row inside the down product.

At one row every program of the down product can afford to activate the whole row for itself, and a stage of the step's
chain goes away; more rows would be activated a hundred times over. Both ways give a row the same bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from ling_runtime.config import TILE
from ling_runtime.ops.registry import variant
from ling_runtime.ops.triton.launch import enter, launch, leave
from ling_runtime.ops.triton.linear import Tiles, precision, product
from ling_runtime.ops.triton.moe import NO_LIMIT, activated

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.ops.registry import Kernels
    from ling_runtime.ops.triton.moe import Limits

ACTIVATION = "the activation rounds once, from fp32"
COLUMNS = 256
"""Columns of an activating program."""
DOWN_TILES = Tiles(16, 512, 4, 1)
"""Deep, and unrolled: a short load of one row is not pipelined, so there should be few."""


@variant("dense_mlp", "triton", "rounding", f"{ACTIVATION}; one row's is inside the down product")
def dense_triton(x: Tensor, gate_up: Tensor, down: Tensor, limit: float | None, kernels: Kernels) -> Tensor:
    """x [R, D] through gate_up [2F, D] and down [D, F] -> [R, D]."""
    if len(x) > 1:
        return dense_apart(x, gate_up, down, limit, kernels)
    hidden = kernels["linear"](x, gate_up)
    outputs, inner = down.shape
    out = x.new_empty(1, outputs)
    _gated_down[(triton.cdiv(outputs, DOWN_TILES.columns),)](
        hidden, down, out, NO_LIMIT if limit is None else limit, outputs, inner, DOWN_TILES.columns,
        min(DOWN_TILES.depth, triton.next_power_of_2(inner)), TILE, precision(x.dtype), **launch(),
        num_warps=DOWN_TILES.warps, num_stages=DOWN_TILES.stages,
    )  # fmt: skip
    return out


@variant("dense_mlp", "triton_apart", "rounding", ACTIVATION)
def dense_apart(x: Tensor, gate_up: Tensor, down: Tensor, limit: float | None, kernels: Kernels) -> Tensor:
    hidden = kernels["linear"](x, gate_up)
    out = activate(hidden[None, :, None], x.dtype, (limit, None), None)[:, 0]
    return kernels["linear"](out, down)  # type: ignore[no-any-return]


def activate(hidden: Tensor, dtype: torch.dtype, limits: Limits, shared_slot: int | None) -> Tensor:
    """gate|up in parts [P, R, s, 2F], added in order -> act(gate, up) [R, s, F]; `limits` of the slots and of the
    shared expert's.
    """
    parts, rows, slots, width = hidden.shape
    out = torch.empty(rows, slots, width // 2, dtype=dtype, device=hidden.device)
    low, high = (NO_LIMIT if limit is None else limit for limit in limits)
    _activate[(rows * slots, triton.cdiv(width // 2, COLUMNS))](
        hidden, out, rows * slots * width, low, high, -1 if shared_slot is None else shared_slot, slots, width // 2,
        parts, COLUMNS, **launch(), num_warps=4,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["stride", "shared", "slots"])
def _activate(
    hidden, out, stride, low, high, shared, slots, F: tl.constexpr, PARTS: tl.constexpr, BN: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    enter(PDL)
    pair, column = tl.program_id(0), tl.program_id(1) * BN + tl.arange(0, BN)
    inside = column < F
    at = hidden + pair * (2 * F) + column
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + F, mask=inside, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        gate += tl.load(at + part * stride, mask=inside, other=0.0).to(tl.float32)
        up += tl.load(at + part * stride + F, mask=inside, other=0.0).to(tl.float32)
    act = activated(gate, up, pair % slots, shared, low, high)
    tl.store(out + pair * F + column, act.to(out.dtype.element_ty), mask=inside)
    leave(PDL)


@triton.jit
def _gated_down(
    hidden, down, out, limit, N, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TM: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One row gate|up [2K], activated a block of the depth at a time, through down [N, K]; summed front to back."""
    enter(PDL)
    column, place = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK)
    first = tl.arange(0, TM) == 0
    total = tl.zeros((TM, BN), tl.float32)
    for block in tl.static_range((K + BK - 1) // BK):
        here = block * BK + place
        inside = here < K
        b = tl.load(down + (column % N)[None, :] * K + here[:, None], mask=inside[:, None], other=0.0)
        gate = tl.load(hidden + here, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(hidden + K + here, mask=inside, other=0.0).to(tl.float32)
        act = activated(gate, up, 0, -1, limit, limit).to(b.dtype)
        a = tl.where(first[:, None], act[None, :], tl.zeros((TM, BK), b.dtype))
        total = product(a, b, total, PRECISION)
    known = first[:, None] & (column < N)[None, :]
    tl.store(out + column[None, :] + tl.zeros((TM, BN), tl.int32), total.to(out.dtype.element_ty), mask=known)
    leave(PDL)
