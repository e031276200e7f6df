"""Sigmoid, silu and Ling's SwiGLU, whose clamp comes after silu: min(silu(a), L) * clamp(b, -L, L).

The library's own sigmoid rounds the last elements of a buffer differently from the rest (a scalar loop finishes what
the vector loop leaves), so an element's bits would depend on its place. Its exp does not; everything here is built on
that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def sigmoid(x: Tensor) -> Tensor:
    return x.neg().exp_().add_(1).reciprocal_()


def silu(x: Tensor) -> Tensor:
    return sigmoid(x).mul_(x)


def swiglu(gate_up: Tensor, limit: float | None) -> Tensor:
    """[..., 2F] holding gate then up -> [..., F]; `limit` None leaves it unclamped."""
    gate, up = gate_up.chunk(2, dim=-1)
    if limit is None:
        return silu(gate).mul_(up)
    return silu(gate).clamp_(max=limit).mul_(up.clamp(-limit, limit))
