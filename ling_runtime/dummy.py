"""Random weights made where they are used: the shapes of a real checkpoint without its 60 GB on any disk.

A mapping from Hugging Face names that draws each tensor on the device when it is asked for, from a seed and the name
alone, so two runs are equal whatever the order of loading. Projections back into the residual stream are scaled down
with depth; the stream then stays what its token made it, values stay finite through all layers, and tokens route as
independently, and experts as evenly, as random gates allow. The surprise: for the same reason all masks of a draft's
block end as nearly the same row, so what tells one draft from the next must be its Markov head.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch

from ling_runtime.draft_config import DraftConfig
from ling_runtime.draft_table import draft_tensor_specs
from ling_runtime.tensor_table import TensorSpec, tensor_specs
from ling_runtime.weights import shard

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.config import ModelConfig

INTO_RESIDUAL = ("o_proj.weight", "dense.weight", "down_proj.weight")
TABLES = ("word_embeddings.weight", "markov_w1.weight")
"""Rows looked up by token, of unit values."""
MARKOV_OVER_BASE = 4.0
"""The Markov bias in units of a block's base logits. By fan-in alone, small beside what all its rows share, it left a
block that repeated one token, and a verification that read the experts of one row.
"""


class DummyTensors(Mapping[str, "Tensor"]):
    """Every tensor of `config`'s checkpoint, drawn on `device` at each access and not kept.

    `confidence`: of a draft's, with the confidence head. `rank` of `size` keeps its part of what all draw whole: the
    model depends on the seed alone, however many share it.
    """

    def __init__(
        self, config: ModelConfig | DraftConfig, *, seed: int, device: torch.device, confidence: bool = False,
        rank: int = 0, size: int = 1,
    ) -> None:  # fmt: skip
        self._seed, self._device = seed, device
        self._rank, self._size = rank, size
        self._specs = (
            draft_tensor_specs(config, confidence=confidence)
            if isinstance(config, DraftConfig)
            else tensor_specs(config)
        )
        self._depth_scale = (2 * config.num_hidden_layers) ** -0.5

    def __getitem__(self, name: str) -> Tensor:
        spec = self._specs[name]
        generator = torch.Generator(self._device).manual_seed(self._seed_of(name))
        noise = torch.empty(spec.shape, dtype=spec.dtype, device=self._device).normal_(generator=generator)
        return shard(spec, self._scaled(name, spec, noise), self._rank, self._size).contiguous()

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)

    def _seed_of(self, name: str) -> int:
        return int.from_bytes(hashlib.blake2b(f"{self._seed} {name}".encode(), digest_size=7).digest(), "big")

    def _scaled(self, name: str, spec: TensorSpec, noise: Tensor) -> Tensor:
        if name.endswith("norm.weight"):
            return noise.mul_(0.1).add_(1.0)
        if name.endswith(("A_log", "dt_bias")):
            return noise.mul_(0.5)
        if name.endswith("expert_bias"):
            return noise.mul_(0.01)
        if name.endswith(TABLES):
            return noise
        scale = spec.shape[-1] ** -0.5
        if name.endswith("markov_w2.weight"):
            return noise.mul_(MARKOV_OVER_BASE * scale)
        if name.endswith("joint_proj.weight"):  # [3 r, r + r + D]: state, token, and the row, which says nothing here
            rank = len(noise) // 3
            noise[:, 2 * rank :].mul_(scale)
            return noise.mul_(rank**-0.5)
        return noise.mul_(scale * self._depth_scale if name.endswith(INTO_RESIDUAL) else scale)
