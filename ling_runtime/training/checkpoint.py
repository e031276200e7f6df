"""Stops and resumes a run: fp32 parameters, optimizer state and the step number in one file.

Muon's momentum is kept in bf16, half the file, because it is rounded to bf16 before every use anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ling_runtime.training.optimizer import Muon

if TYPE_CHECKING:
    from pathlib import Path

    from ling_runtime.training.pretrain import Trainer


def store(trainer: Trainer, path: Path) -> None:
    states = [_narrow(o.state_dict()) if isinstance(o, Muon) else o.state_dict() for o in trainer.optimizers]
    params = {name: p.detach() for name, p in trainer.params.items()}
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


def _narrow(state: dict[str, Any]) -> dict[str, Any]:
    narrowed = {k: {n: v.bfloat16() for n, v in values.items()} for k, values in state["state"].items()}
    return {**state, "state": narrowed}
