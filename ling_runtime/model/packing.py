"""From checkpoint tensors to what layers multiply with: one projection per layer, stacked experts, absorbed MLA
factors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ling_runtime.ops.norm import widen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


@dataclass(frozen=True)
class Packer:
    """Tensors under one name prefix, converted to the run's precision and device on the way out."""

    tensors: Mapping[str, Tensor]
    prefix: str
    dtype: torch.dtype
    device: torch.device

    def at(self, suffix: str) -> Packer:
        return Packer(self.tensors, f"{self.prefix}{suffix}.", self.dtype, self.device)

    def __call__(self, name: str) -> Tensor:
        """A tensor in the run's precision."""
        return self.tensors[self.prefix + name].to(self.device, self.dtype)

    def wide(self, name: str) -> Tensor:
        """A tensor in fp32 (fp64 where the run is), for what must not round."""
        tensor = self.tensors[self.prefix + name].to(self.device)
        return tensor.double() if self.dtype == torch.float64 else widen(tensor)

    def stack(self, *names: str) -> Tensor:
        """Projections of one input as one matrix, outputs in the order of the names."""
        return torch.cat([self(f"{name}.weight") for name in names])
