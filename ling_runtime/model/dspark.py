"""The DSpark draft network: fused target rows in, a block of hidden rows out in one parallel pass.

The block is the anchor (the newest token, which the target has not seen) followed by mask tokens; row k guesses the
token k + 1 places after the anchor. Context comes from the target alone, through `context`. The surprise: where the
draft does not sample from its anchor the block has one row more, and the first is dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ling_runtime.memory.draft import DeviceBlock
from ling_runtime.model.block_attention import Block, MhaContext, attention
from ling_runtime.model.markov import ConfidenceHead, markov_head
from ling_runtime.model.mlp import DenseMlp
from ling_runtime.model.packing import Packer
from ling_runtime.ops.draft import turn_table
from ling_runtime.ops.linear import pad_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from ling_runtime.draft_config import DraftConfig
    from ling_runtime.model.block_attention import BlockAttention
    from ling_runtime.model.ling import Ling


class Dspark:
    """Shares `target`'s embedding, head, kernels and precision; `positions` bounds those it will see."""

    def __init__(self, target: Ling, tensors: Mapping[str, Tensor], config: DraftConfig, *, positions: int) -> None:
        weights = Packer(tensors, "", target.dtype, target.device)
        self.config, self._target, self._eps = config, target, config.rms_norm_eps
        self._fuse, self._fused_norm = weights("fc.weight"), weights("hidden_norm.weight")
        self._context, attentions = attention(config, weights, target.kernels)
        blocks = [weights.at(f"layers.{i}") for i in range(config.num_hidden_layers)]
        mlps = [DenseMlp(block.at("mlp"), None, target.kernels) for block in blocks]
        input_norms = [block("input_layernorm.weight") for block in blocks] + [weights("norm.weight")]
        post_norms = [block("post_attention_layernorm.weight") for block in blocks]
        self._first_norm = input_norms[0]
        self._layers = list(zip(attentions, post_norms, mlps, input_norms[1:], strict=True))
        width = config.rotary_width if config.attention_type == "mla" else config.head_dim
        wide = torch.complex128 if target.dtype == torch.float64 else torch.complex64
        table = turn_table(config.rope_theta, config.rotary_width, width, positions)
        self._turns = table.to(target.device, wide)
        self.markov = markov_head(config, weights.at("markov_head"), target.kernels)
        self.confidence = (
            ConfidenceHead(config, weights.at("confidence_head"), self.markov.embedding)
            if "confidence_head.proj.weight" in tensors
            else None
        )

    @property
    def width(self) -> int:
        """Values cached per token and layer."""
        return self._context.width

    def context(self, captured: Sequence[Tensor], positions: Tensor) -> Tensor:
        """The target's rows [R, D] at each captured layer, R in whole tiles -> rows to inject [R, layers, width].

        `positions` [n] are those of the first n rows.
        """
        linear, norm = self._target.kernels["linear"], self._target.kernels["rms_norm"]
        fused = norm(linear(torch.cat(list(captured), dim=-1), self._fuse), self._fused_norm, self._eps)
        return self._context(fused, pad_rows(self._turns.index_select(0, positions)))

    def rows(self, drafts: int) -> int:
        """Rows of a block that makes `drafts`."""
        return drafts + (not self.config.sample_from_anchor)

    def __call__(self, anchors: Tensor, starts: tuple[int, ...], contexts: Sequence[Tensor], drafts: int) -> Tensor:
        """anchors [B] at positions `starts`, cached rows of each request -> hidden [B, drafts, D] after the final norm.

        `contexts` have room for the block's rows behind `starts`; what is there is overwritten.
        """
        rows = self.rows(drafts)
        ids = anchors.new_full((len(starts), rows), self.config.mask_token_id)
        ids[:, 0] = anchors
        places = torch.tensor(starts, device=anchors.device)[:, None] + torch.arange(rows, device=anchors.device)
        turns = pad_rows(self._turns.index_select(0, places.flatten())).unsqueeze(1)
        block = Block(rows, starts, contexts, turns)
        normed = self._rows(self._target.embed(ids.flatten()), lambda attend, x: attend(x, block))
        hidden: Tensor = normed[: len(starts) * rows].unflatten(0, (len(starts), rows))
        return hidden[:, rows - drafts :]

    def over_pages(self, anchors: Tensor, block: DeviceBlock, drafts: int) -> Tensor:
        """As a call, for a block whose lengths and pages are on the device; nothing is read back."""
        ids = anchors.new_full((len(anchors), block.rows), self.config.mask_token_id)
        ids[:, 0] = anchors
        residual = self._target.embedding.index_select(0, ids.flatten())
        hidden = self._rows(residual, lambda attend, x: attend.over_pages(x, block))  # type: ignore[attr-defined]
        return hidden.view(len(anchors), block.rows, -1)[:, block.rows - drafts :]

    def into_pages(self, captured: Tensor, block: DeviceBlock) -> None:
        """The target's rows at all captured layers side by side [B T, m D], into the cache at the block's positions."""
        linear, norm = self._target.kernels["linear"], self._target.kernels["rms_norm"]
        assert isinstance(self._context, MhaContext), "checked where graphs are asked for"
        self._context.into_pages(norm(linear(captured, self._fuse), self._fused_norm, self._eps), block)

    def device_block(self, cache: Tensor, table: Tensor, starts: Tensor, rows: int) -> DeviceBlock:
        """`rows` positions of each request from `starts` [B] on, in the pages of `table`."""
        return DeviceBlock(cache, table, starts, rows, self._turns)

    def _rows(self, residual: Tensor, attended: Callable[[BlockAttention, Tensor], Tensor]) -> Tensor:
        """Embedded rows [R, D] through all layers and the final norm."""
        kernels = self._target.kernels
        normed = kernels["rms_norm"](residual, self._first_norm, self._eps)
        for attend, post_norm, mlp, next_norm in self._layers:
            normed, residual = kernels["add_rms_norm"](attended(attend, normed), residual, post_norm, self._eps)
            normed, residual = kernels["add_rms_norm"](mlp(normed), residual, next_norm, self._eps)
        return normed  # type: ignore[no-any-return]
