"""The target network: token ids of a window in, hidden rows after the final norm out.

The head is a separate call, because prefill needs it on one row and verification on all. Norms are fused with the
residual add before them, so the loop carries (normed rows, residual) from layer to layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ling_runtime.model.attention import KdaAttention, MlaAttention
from ling_runtime.model.mlp import DenseMlp, MoeMlp
from ling_runtime.model.packing import Packer
from ling_runtime.ops.linear import pad_rows
from ling_runtime.ops.rope import rope_table
from ling_runtime.parallel.communicator import ALONE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ling_runtime.config import ModelConfig
    from ling_runtime.memory.caches import Pass
    from ling_runtime.ops.registry import Kernels
    from ling_runtime.parallel.communicator import Communicator


class TargetRows(NamedTuple):
    """What one pass leaves of its rows, R of them in whole tiles."""

    hidden: Tensor
    """[R, D] after the final norm."""
    captured: tuple[Tensor, ...]
    """[R, D] of the residual stream, after each layer asked for."""


class Block:
    """Attention and feed-forward of one layer with its two norms; of each, a rank computes a part of the sum."""

    def __init__(
        self, config: ModelConfig, weights: Packer, layer: int, index: int, rope: Tensor, kernels: Kernels,
        ranks: Communicator,
    ) -> None:  # fmt: skip
        self._ranks = ranks
        self._add_norm, self._eps = kernels["add_rms_norm"], config.rms_norm_eps
        self.input_norm = weights("input_layernorm.weight")
        self._post_norm = weights("post_attention_layernorm.weight")
        attention = weights.at("attention")
        self._attention = (
            MlaAttention(config, attention, index, rope, kernels)
            if config.is_mla(layer)
            else KdaAttention(config, attention, index, kernels)
        )
        self._mlp = (
            DenseMlp(weights.at("mlp"), None, kernels)
            if config.is_dense(layer)
            else MoeMlp(config, weights.at("mlp"), layer, kernels, ranks)
        )

    def __call__(self, normed: Tensor, residual: Tensor, next_norm: Tensor, pass_: Pass) -> tuple[Tensor, Tensor]:
        """(normed, residual) in, the same for the layer whose input norm is `next_norm` out."""
        attended = self._ranks.reduce(self._attention(normed, pass_))
        if isinstance(self._mlp, MoeMlp):
            return self._mlp(attended, residual, self._post_norm, next_norm, pass_)
        normed, residual = self._add_norm(attended, residual, self._post_norm, self._eps)
        out = self._ranks.reduce(self._mlp(normed, prompt=pass_.window.prompt))
        return self._add_norm(out, residual, next_norm, self._eps)  # type: ignore[no-any-return]


class Ling:
    """Weights of the target, packed once at load: all of them, or what is one rank's of `ranks`.

    `config` and `tensors` are then the rank's own (`ModelConfig.of_rank`, `weights.load`).
    """

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, Tensor],
        kernels: Kernels,
        *,
        positions: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
        ranks: Communicator = ALONE,
    ) -> None:
        device = device or torch.device("cpu")
        self.ranks = ranks
        self.config, self.kernels, self.dtype, self.device = config, kernels, dtype, device
        weights = Packer(tensors, "model.", dtype, device)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        self.rope = rope_table(config, positions).to(device, wide)
        self.embedding = weights("word_embeddings.weight")
        self._blocks = [
            Block(config, weights.at(f"layers.{i}"), i, self._index(i), self.rope, kernels, ranks)
            for i in range(config.num_hidden_layers)
        ]
        norms = [block.input_norm for block in self._blocks] + [weights("norm.weight")]
        self._first_norm, self._next_norms = norms[0], norms[1:]
        self._head = Packer(tensors, "", dtype, device)("lm_head.weight")

    def _index(self, layer: int) -> int:
        """Place of `layer` among the layers of its kind."""
        return self.config.layers(mla=self.config.is_mla(layer)).index(layer)

    def embed(self, ids: Tensor) -> Tensor:
        """ids [B * T] -> rows [R, D], padded to whole tiles."""
        return pad_rows(self.lookup(ids))

    def lookup(self, ids: Tensor) -> Tensor:
        """ids [n] -> their embeddings [n, D]. One rank knows a token and the others add zeros: no bit is lost."""
        if self.ranks.size == 1:
            return self.embedding.index_select(0, ids)
        known = len(self.embedding)
        place = ids - self.ranks.rank * known
        foreign = (place < 0) | (place >= known)
        rows = self.embedding.index_select(0, place.clamp(0, known - 1))
        return self.ranks.reduce(rows.masked_fill_(foreign.unsqueeze(1), 0))

    def __call__(self, ids: Tensor, pass_: Pass) -> Tensor:
        """Run the window's ids [B * T]; returns hidden [R, D] after the final norm and leaves the state staged."""
        return self.rows(ids, pass_).hidden

    def rows(self, ids: Tensor, pass_: Pass, capture: Sequence[int] = ()) -> TargetRows:
        """As a call, with the residual stream after each layer of `capture`, ascending."""
        residual = pass_.window.pad(self.lookup(ids))
        normed = self.kernels["rms_norm"](residual, self._first_norm, self.config.rms_norm_eps)
        captured = []
        for layer, (block, next_norm) in enumerate(zip(self._blocks, self._next_norms, strict=True)):
            normed, residual = block(normed, residual, next_norm, pass_)
            if layer in capture:
                captured.append(residual)
        return TargetRows(normed, tuple(captured))

    def greedy(self, hidden: Tensor) -> Tensor:
        """hidden [n, D] -> the best token of each row [n], without keeping logits."""
        if self.ranks.size == 1:
            return self.kernels["greedy_head"](hidden, self._head)  # type: ignore[no-any-return]
        return self.ranks.best(self.kernels["shard_head"](hidden, self._head, self.ranks.rank * len(self._head)))

    def row_logits(self, hidden: Tensor) -> Tensor:
        """hidden [n, D] -> logits [n, V] in the rows' precision, for a choice that something is added to first."""
        return self.kernels["linear"](hidden, self._head)  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [n, D] -> wide logits [n, V]; pads to tiles itself."""
        return self.ranks.beside(self.kernels["lm_head"](pad_rows(hidden), self._head)[: hidden.shape[0]])
