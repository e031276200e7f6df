"""The gated feed-forward in Triton: between its two products the activation is one kernel, which rounds once.

Both products are the chosen `linear`, at every number of rows: a row's bits would depend on how many there are if one
row's down product were another kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from ling_runtime.ops.registry import variant
from ling_runtime.ops.triton.launch import enter, launch, leave
from ling_runtime.ops.triton.moe import NO_LIMIT, activated

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.ops.registry import Kernels
    from ling_runtime.ops.triton.moe import Limits

ACTIVATION = "the activation rounds once, from fp32"
COLUMNS = 256
"""Columns of an activating program."""


@variant("dense_mlp", "triton", "rounding", ACTIVATION)
def dense_triton(x: Tensor, gate_up: Tensor, down: Tensor, limit: float | None, kernels: Kernels) -> Tensor:
    """x [R, D] through gate_up [2F, D] and down [D, F] -> [R, D]."""
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
