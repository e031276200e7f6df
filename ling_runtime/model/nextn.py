"""The NEXTN draft layer: one MLA + MoE block that guesses the token after next.

The row at position i pairs the hidden row of i with the embedding of token i + 1 and predicts token i + 2; its cache
entry lies at position i. Embedding and head are the target's own. Its hidden output stands in for the target's on
later steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ling_runtime.model.ling import Block, Ling
from ling_runtime.model.packing import Packer
from ling_runtime.ops.prompt import project

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from ling_runtime.memory.caches import Pass


class Nextn:
    """Shares `target`'s embedding, head, kernels and precision; `index` is its layer in the latent pool."""

    def __init__(self, target: Ling, tensors: Mapping[str, Tensor], index: int) -> None:
        config = target.config
        layer = config.num_hidden_layers
        weights = Packer(tensors, f"model.layers.{layer}.", target.dtype, target.device)
        self._target, self._eps = target, config.rms_norm_eps
        self._embed_norm, self._hidden_norm = weights("enorm.weight"), weights("hnorm.weight")
        self._final_norm, self._join = weights("final_layernorm.weight"), weights("eh_proj.weight")
        self._block = Block(config, weights, layer, index, target.rope, target.kernels, target.ranks)

    def __call__(self, ids: Tensor, hidden: Tensor, pass_: Pass) -> Tensor:
        """ids [B * T] of the next tokens, hidden [>= B * T, D] -> hidden [R, D] after the final norm."""
        kernels, pad = self._target.kernels, pass_.window.pad
        norm = kernels["rms_norm"]
        embedded = norm(pad(self._target.lookup(ids)), self._embed_norm, self._eps)
        carried = norm(pad(hidden[: ids.shape[0]]), self._hidden_norm, self._eps)
        residual = project(kernels, pass_.window.prompt, torch.cat([embedded, carried], dim=-1), self._join)
        normed = norm(residual, self._block.input_norm, self._eps)
        return self._block(normed, residual, self._final_norm, pass_)[0]
