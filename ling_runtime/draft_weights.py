"""The files of a DSpark draft checkpoint: reading them, writing them, random tensors in their place.

Embedding and head belong to the target, so a stored copy of them is skipped. The surprise: published drafts come with
and without the confidence head. Static verification never asks for it and loads either; the modes that schedule by
confidence name what is missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file

from ling_runtime.config import ConfigError
from ling_runtime.draft_table import CONFIDENCE, draft_tensor_specs
from ling_runtime.weights import listed, stored_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from ling_runtime.draft_config import DraftConfig
    from ling_runtime.tensor_table import TensorSpec

PREFIX = "model."
"""Some checkpoints put it before every name; here names have none."""

_SKIPPED = ("lm_head.", "embed_tokens.", "rotary_emb.")


def load_draft(path: str | Path, config: DraftConfig, *, confidence: bool = False) -> dict[str, Tensor]:
    """Read a draft's tensors; those of the confidence head are returned where they are stored, and required on demand.

    Raises ConfigError naming what is missing, unreadable, of a wrong shape, or stored by nobody's name, and what lacks
    the confidence head that `confidence` asks for.
    """
    if confidence and not config.enable_confidence_head:
        raise ConfigError(f"draft {path}: enable_confidence_head=false; verification by confidence needs the head")
    specs = draft_tensor_specs(config, confidence=True)
    tensors: dict[str, Tensor] = {}
    surplus: list[str] = []
    for stored, tensor in stored_tensors(Path(path)):
        name = stored.removeprefix(PREFIX)
        if name in specs:
            if tuple(tensor.shape) != specs[name].shape:
                raise ConfigError(f"draft {path}: {stored}: shape {tuple(tensor.shape)}, expected {specs[name].shape}")
            tensors[name] = tensor
        elif not name.startswith(_SKIPPED) and "rotary_emb." not in name:
            surplus.append(stored)
    missing = [name for name in specs if name not in tensors and not name.startswith(CONFIDENCE)]
    if missing or surplus:
        raise ConfigError(f"draft {path}: missing {listed(missing)}; not part of this draft {listed(surplus)}")
    lost = [name for name in specs if name not in tensors]
    if confidence and lost:
        raise ConfigError(f"draft {path}: missing {listed(lost)}; verification by confidence needs the head")
    return tensors if not lost else {n: t for n, t in tensors.items() if not n.startswith(CONFIDENCE)}


def save_draft(path: str | Path, tensors: Mapping[str, Tensor], config: DraftConfig) -> None:
    """Write config.json and model.safetensors under `path`: bf16, and fp32 where the table says so."""
    specs = draft_tensor_specs(config)
    assert tensors.keys() == specs.keys(), "exactly the draft's own tensors"
    Path(path).mkdir(parents=True, exist_ok=True)
    config.write(path)
    save_file({n: t.to(specs[n].dtype).contiguous() for n, t in tensors.items()}, Path(path) / "model.safetensors")


def initialise_draft(config: DraftConfig, seed: int = 0) -> dict[str, Tensor]:
    """Random weights of a sane scale, reproducible by `seed`: norms near one, biases near zero, matrices by fan-in."""
    generator = torch.Generator().manual_seed(seed)
    return {name: _random(name, spec, generator) for name, spec in draft_tensor_specs(config).items()}


def _random(name: str, spec: TensorSpec, generator: torch.Generator) -> Tensor:
    noise = torch.randn(spec.shape, generator=generator)
    if "norm" in name:
        return (1.0 + 0.1 * noise).to(spec.dtype)
    return (noise * (0.1 if name.endswith("bias") else spec.shape[-1] ** -0.5)).to(spec.dtype)
