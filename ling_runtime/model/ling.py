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

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ling_runtime.config import ModelConfig
    from ling_runtime.memory.caches import Pass
    from ling_runtime.ops.registry import Kernels


class TargetRows(NamedTuple):
    """What one pass leaves of its rows, R of them in whole tiles."""

    hidden: Tensor
    """[R, D] after the final norm."""
    captured: tuple[Tensor, ...]
    """[R, D] of the residual stream, after each layer asked for."""


class Block:
    """Attention and feed-forward of one layer with its two norms."""

    def __init__(self, config: ModelConfig, weights: Packer, layer: int, index: int, rope: Tensor, kernels: Kernels):
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
            else MoeMlp(config, weights.at("mlp"), layer, kernels)
        )

    def __call__(self, normed: Tensor, residual: Tensor, next_norm: Tensor, pass_: Pass) -> tuple[Tensor, Tensor]:
        """(normed, residual) in, the same for the layer whose input norm is `next_norm` out."""
        attended = self._attention(normed, pass_)
        if isinstance(self._mlp, MoeMlp):
            return self._mlp(attended, residual, self._post_norm, next_norm, pass_)
        normed, residual = self._add_norm(attended, residual, self._post_norm, self._eps)
        return self._add_norm(self._mlp(normed, prompt=pass_.window.prompt), residual, next_norm, self._eps)  # type: ignore[no-any-return]


class Ling:
    """Weights of the whole target, packed once at load."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, Tensor],
        kernels: Kernels,
        *,
        positions: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> None:
        device = device or torch.device("cpu")
        self.config, self.kernels, self.dtype, self.device = config, kernels, dtype, device
        weights = Packer(tensors, "model.", dtype, device)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        self.rope = rope_table(config, positions).to(device, wide)
        self.embedding = weights("word_embeddings.weight")
        self._blocks = [
            Block(config, weights.at(f"layers.{i}"), i, self._index(i), self.rope, kernels)
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
        return pad_rows(self.embedding.index_select(0, ids))

    def __call__(self, ids: Tensor, pass_: Pass) -> Tensor:
        """Run the window's ids [B * T]; returns hidden [R, D] after the final norm and leaves the state staged."""
        return self.rows(ids, pass_).hidden

    def rows(self, ids: Tensor, pass_: Pass, capture: Sequence[int] = ()) -> TargetRows:
        """As a call, with the residual stream after each layer of `capture`, ascending."""
        residual = pass_.window.pad(self.embedding.index_select(0, ids))
        normed = self.kernels["rms_norm"](residual, self._first_norm, self.config.rms_norm_eps)
        captured = []
        for layer, (block, next_norm) in enumerate(zip(self._blocks, self._next_norms, strict=True)):
            normed, residual = block(normed, residual, next_norm, pass_)
            if layer in capture:
                captured.append(residual)
        return TargetRows(normed, tuple(captured))

    def greedy(self, hidden: Tensor) -> Tensor:
        """hidden [n, D] -> the best token of each row [n], without keeping logits."""
        return self.kernels["greedy_head"](hidden, self._head)  # type: ignore[no-any-return]

    def row_logits(self, hidden: Tensor) -> Tensor:
        """hidden [n, D] -> logits [n, V] in the rows' precision, for a choice that something is added to first."""
        return self.kernels["linear"](hidden, self._head)  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [n, D] -> wide logits [n, V]; pads to tiles itself."""
        return self.kernels["lm_head"](pad_rows(hidden), self._head)[: hidden.shape[0]]  # type: ignore[no-any-return]
