"""Muon for the matrices inside the layers, AdamW for the rest.

Muon replaces a matrix's momentum by the nearest orthogonal one (five Newton-Schulz steps), which trains small models in
about half the steps. Its update is scaled to the root mean square of a typical AdamW update (0.2), so both share one
learning rate. Matrices of one shape, such as all experts of all layers, are orthogonalised as one batch.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

_QUINTIC = (3.4445, -4.7750, 2.0315)  # coefficients that push all singular values towards one
_UPDATE_RMS = 0.2


def orthogonalise(x: Tensor) -> Tensor:
    """The orthogonal factor of each matrix of a batch [N, rows, columns], roughly."""
    a, b, c = _QUINTIC
    tall = x.shape[-2] > x.shape[-1]
    y = (x.mT if tall else x).bfloat16()
    y = y / (y.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = y @ y.mT
        y = a * y + (b * gram + c * gram @ gram) @ y
    orthogonal: Tensor = (y.mT if tall else y).to(x.dtype)
    return orthogonal


class Muon(torch.optim.Optimizer):
    """The learning rate is a tensor, so that a captured step follows its schedule."""

    def __init__(self, params: list[Tensor], lr: Tensor, momentum: float = 0.95, weight_decay: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for p in group["params"]:
                shapes[p.shape].append(p)
            for same in shapes.values():
                self._step_batch(same, **{k: group[k] for k in ("lr", "momentum", "weight_decay")})

    def _step_batch(self, params: list[Tensor], lr: Tensor, momentum: float, weight_decay: float) -> None:
        for p in params:
            if "momentum" not in self.state[p]:
                self.state[p]["momentum"] = torch.zeros_like(p)
        averages = [self.state[p]["momentum"] for p in params]
        gradients = [p.grad for p in params if p.grad is not None]
        torch._foreach_lerp_(averages, gradients, 1 - momentum)
        looked_ahead = torch._foreach_lerp(gradients, averages, momentum)  # noqa: SLF001
        scale = _UPDATE_RMS * max(params[0].shape) ** 0.5
        updates = orthogonalise(torch.stack(looked_ahead)) * (-lr * scale)
        torch._foreach_mul_(params, 1 - lr * weight_decay)
        torch._foreach_add_(params, list(updates.unbind()))


def optimizers(params: Mapping[str, Tensor], lr: Tensor, weight_decay: float = 0.1) -> list[torch.optim.Optimizer]:
    """Muon over matrices of the layers, AdamW over embedding, head, router, norms and biases; both read `lr`."""
    muon = [p for name, p in params.items() if _is_hidden_matrix(name, p)]
    others = [p for name, p in params.items() if not _is_hidden_matrix(name, p)]
    gpu = lr.is_cuda
    adam = torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.95), weight_decay=0.0, fused=gpu, capturable=gpu)
    return [Muon(muon, lr, weight_decay=weight_decay), adam]


def _is_hidden_matrix(name: str, p: Tensor) -> bool:
    return p.ndim == 2 and ".layers." in name and not name.endswith(("mlp.gate.weight", "b_proj.weight"))
