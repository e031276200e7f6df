"""SwiGLU with Ling's clamp, which comes after silu: min(silu(a), L) * clamp(b, -L, L)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F

if TYPE_CHECKING:
    from torch import Tensor


def swiglu(gate_up: Tensor, limit: float | None) -> Tensor:
    """[..., 2F] holding gate then up -> [..., F]; `limit` None leaves it unclamped."""
    gate, up = gate_up.chunk(2, dim=-1)
    if limit is None:
        return F.silu(gate) * up
    return F.silu(gate).clamp(max=limit) * up.clamp(-limit, limit)
