"""What an artifact was made with: target, draft, block size, hardware, kernels; so that it is used with nothing else.

Checkpoints are known by content and not by path, or a copy would be a stranger and a retrained draft an old friend. The
surprise: weights are hashed in samples, because whole ones take minutes to read where they fill a disk; training moves
nearly every value, so a sample is enough to tell two checkpoints apart.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ling_runtime import processor
from ling_runtime.config import ConfigError
from ling_runtime.ops.prompt import PROMPT_VARIANTS

if TYPE_CHECKING:
    from collections.abc import Mapping

SAMPLES, SAMPLE = 64, 4096
"""Pieces read of each weight file, and bytes in each."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    target: str
    draft: str
    gamma: int
    hardware: str
    kernels: dict[str, str] | None
    """Variants of a step's operators, but for references; None: not known yet, or of no account."""


def identity_of(
    target: str | Path,
    draft: str | Path,
    gamma: int,
    *,
    device: str,
    dtype: str,
    kernels: Mapping[str, str] | None,
    threads: int | None = None,
) -> Identity:
    """`threads` None: as many as this process uses."""
    return Identity(
        target=checkpoint(target),
        draft=checkpoint(draft),
        gamma=gamma,
        hardware=hardware(device, dtype, threads),
        kernels=None if kernels is None else of_steps(kernels),
    )


def checkpoint(path: str | Path) -> str:
    """A hash of config.json and samples of the weights at `path`; ConfigError where there are none."""
    files = sorted(Path(path).glob("*.safetensors"))
    if not files:
        raise ConfigError(f"checkpoint {str(path)!r}: no *.safetensors there")
    digest = hashlib.sha256((Path(path) / "config.json").read_bytes())
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name} {size}".encode())
        with file.open("rb") as content:
            for sample in range(SAMPLES):
                content.seek(max(size - SAMPLE, 0) * sample // (SAMPLES - 1))
                digest.update(content.read(SAMPLE))
    return digest.hexdigest()[:16]


def hardware(device: str, dtype: str, threads: int | None = None) -> str:
    """What decides how long a step takes besides code: the device, torch's threads where it is a CPU, and the dtype."""
    if device.startswith("cuda"):
        return f"{torch.cuda.get_device_name(device)}, {dtype}"
    return f"{processor.model()} x {threads or torch.get_num_threads()}, {dtype}"


def of_steps(kernels: Mapping[str, str]) -> dict[str, str]:
    """Of a selection, what decides how long a step takes."""
    return {o: v for o, v in sorted(kernels.items()) if v != "reference" and o not in PROMPT_VARIANTS}
