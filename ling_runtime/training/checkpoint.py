"""Stops and resumes a run: fp32 parameters, optimizer state and the step number in one file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor


class Trainer(Protocol):
    """What of a run is worth keeping."""

    params: dict[str, Tensor]
    optimizers: list[torch.optim.Optimizer]
    lr: Tensor
    """Held by every optimizer, so that a captured step follows its schedule."""
    step: int


def store(trainer: Trainer, path: Path) -> None:
    params = {name: p.detach() for name, p in trainer.params.items()}
    states = [optimizer.state_dict() for optimizer in trainer.optimizers]
    torch.save({"step": trainer.step, "params": params, "optimizers": states}, path)


def restore(trainer: Trainer, path: Path) -> None:
    """Load in place, so that the optimizers keep holding the same tensors."""
    saved = torch.load(path, map_location="cpu", weights_only=True)
    with torch.no_grad():
        for name, p in trainer.params.items():
            p.copy_(saved["params"][name])
    for optimizer, state in zip(trainer.optimizers, saved["optimizers"], strict=True):
        optimizer.load_state_dict(state)
        for group in optimizer.param_groups:
            group["lr"] = trainer.lr
    trainer.step = saved["step"]
