"""What the target's half of a training hands to the draft's half: sequences, and the target's states at each token."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class Batch(NamedTuple):
    """B sequences of T tokens; all tensors on one device."""

    ids: Tensor
    """[B, T] int64."""
    loss_mask: Tensor
    """[B, T] bool: tokens that the target chose itself; anchors and labels are drawn from them."""
    hidden: Tensor
    """[B, T, m * D]: the residual stream after each captured target layer, side by side."""
    final: Tensor
    """[B, T, D]: after the target's final norm; row t scores token t + 1."""
