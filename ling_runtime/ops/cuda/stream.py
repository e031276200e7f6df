"""Products whose weights are asked for before the kernel in front of them has ended: variants `cuda` of a step.

Each is the Triton variant's neighbour and differs from it only in the order of the sum over K, which is one slice a
warp; shapes or types that the kernels were not built for take the Triton variant.
"""

from __future__ import annotations

from ctypes import c_float, c_int, c_void_p
from typing import TYPE_CHECKING

import torch

from ling_runtime.ops.cuda.build import library
from ling_runtime.ops.registry import variant
from ling_runtime.ops.triton.kda import kda_window_triton
from ling_runtime.ops.triton.kda_out import normed_linear
from ling_runtime.ops.triton.launch import level
from ling_runtime.ops.triton.linear import linear_triton
from ling_runtime.ops.triton.router_norm import GateSums, gated_block, norm_gate

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.memory.window import Window
    from ling_runtime.ops.kda import KdaStaged, KdaState, KdaWeights, Linear
    from ling_runtime.ops.moe_layer import MoeWeights
    from ling_runtime.ops.registry import Kernels

WARPS = 8
DEPTHS = {256, 1024, 1536, 2560}
"""K that there are kernels for."""
GATE_DEPTHS = {256, 2560}
MOST_TILES = 5
"""Eights of columns that a program has room for."""
MOST_PARTS = 32
"""Parts of a head's squares that the output projection adds."""
ORDER = "K is summed in eight slices, added in order"


def tiles_for(outputs: int, device: torch.device) -> int:
    """Eights of columns a program, so that every multiprocessor has one program at most."""
    return -(-outputs // (8 * torch.cuda.get_device_properties(device).multi_processor_count))


def streamable(x: Tensor, weight: Tensor) -> bool:
    """By type and shape of the weights alone: a row's bits do not depend on how many there are or how they lie."""
    outputs, inner = weight.shape
    return (
        x.dtype == weight.dtype == torch.bfloat16
        and inner in DEPTHS
        and weight.is_contiguous()
        and tiles_for(outputs, x.device) <= MOST_TILES
    )


def _readable(x: Tensor) -> bool:
    """Rows of x [R, K] lie so that they are read 16 bytes at a time."""
    return x.stride(1) == 1 and x.stride(0) % 8 == 0 and x.data_ptr() % 16 == 0


def _copied(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def _argument(value: Tensor | int | float | None) -> c_int | c_float | c_void_p:
    """An int stays one, and a tensor is where it begins."""
    if isinstance(value, int):
        return c_int(value)
    if isinstance(value, float):
        return c_float(value)
    return c_void_p(None if value is None else value.data_ptr())


def _call(name: str, *values: Tensor | int | float | None, device: torch.device) -> None:
    stream = c_void_p(torch.cuda.current_stream(device).cuda_stream)
    error = getattr(library(), name)(*map(_argument, values), c_int(level()), stream)
    if error:
        raise RuntimeError(f"{name}: CUDA error {error}")


def _product(x: Tensor, weight: Tensor, real: int, squares: Tensor | None, eps: float) -> Tensor:
    (rows, inner), outputs = x.shape, len(weight)
    x = x if _readable(x) else _copied(x)
    out = x.new_empty(rows, outputs)
    parts = 0 if squares is None else squares.shape[2]
    _call(
        "stream_product", x, weight, out, squares, rows, real, x.stride(0), outputs, inner, parts, eps,
        tiles_for(outputs, x.device), device=x.device,
    )  # fmt: skip
    return out


@variant("linear", "cuda", "rounding", ORDER)
def linear_cuda(x: Tensor, weight: Tensor) -> Tensor:
    """x [R, K] @ weight [N, K]^T -> [R, N], for any R."""
    if not streamable(x, weight):
        return linear_triton(x, weight)
    return _product(x, weight, len(x), None, 0.0)


def normed_linear_cuda(gated: Tensor, squares: Tensor, weights: KdaWeights, rows: int) -> Tensor:
    """As `kda_out.normed_linear`; a slice of K is a head."""
    if squares.shape[1] != WARPS or squares.shape[2] > MOST_PARTS or not streamable(gated, weights.out):
        return normed_linear(gated, squares, weights, rows)
    return _product(gated, weights.out, rows, squares, weights.eps)


@variant("kda_window", "cuda", "rounding", f"as triton; in the output projection {ORDER}")
def kda_window_cuda(
    projected: Tensor, window: Window, weights: KdaWeights, state: KdaState, linear: Linear
) -> tuple[Tensor, KdaStaged]:
    return kda_window_triton(projected, window, weights, state, linear, out=normed_linear_cuda)


def norm_gate_cuda(x: Tensor, residual: Tensor, norm: Tensor, gate: Tensor) -> GateSums:
    """As `router_norm.norm_gate`, in one part; weights in fp32 are three of bf16.

    `residual` is read before the wait of dependent launches: the launch right in front may not have written it.
    """
    if not gateable(x, gate):
        return norm_gate(x, residual, norm, gate)
    if not all(each.is_contiguous() and _readable(each) for each in (residual, x)):
        residual, x = _copied(residual), _copied(x)  # in this order
    (rows, inner), experts = x.shape, len(gate)
    sums = torch.empty(1, rows, experts, dtype=torch.float32, device=x.device)
    squares = torch.empty(1, rows, dtype=torch.float32, device=x.device)
    total = torch.empty_like(x)
    _call(
        "stream_gate", x, residual, norm, gate, sums, squares, total, rows, experts, inner,
        int(gate.dtype == torch.float32), device=x.device,
    )  # fmt: skip
    return GateSums(sums, squares, total)


def gateable(x: Tensor, gate: Tensor) -> bool:
    return (
        x.dtype == torch.bfloat16
        and gate.dtype in {torch.bfloat16, torch.float32}
        and gate.shape[1] in GATE_DEPTHS
        and len(gate) % 8 == 0
        and gate.is_contiguous()
    )


@variant("moe_block", "cuda", "rounding", f"as triton_gate_norm; in the gate {ORDER}")
def moe_block_cuda(
    x: Tensor, residual: Tensor, entry: Tensor, norm: Tensor, eps: float, rows: int, weights: MoeWeights,
    kernels: Kernels,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """x [R, D] -> (norm of the sum with the residual, the sum), with the layer's two norms `entry` and `norm`."""
    return gated_block(
        x, residual, entry, norm, eps, rows, weights, kernels, weights.router.gate, norm_gate_cuda
    )  # fmt: skip


@variant("moe_block", "cuda_bf16", "rounding", f"as triton_gate_norm_bf16; in the gate {ORDER}")
def moe_block_cuda_bf16(
    x: Tensor, residual: Tensor, entry: Tensor, norm: Tensor, eps: float, rows: int, weights: MoeWeights,
    kernels: Kernels,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return gated_block(
        x, residual, entry, norm, eps, rows, weights, kernels, weights.router.narrow_gate, norm_gate_cuda
    )  # fmt: skip
