"""Token-by-token generation for training's own use: all prompts in lockstep, with the recurrence written out.

Every row starts at position 0 and reads its prompt one token at a time before it goes on by itself, so prompts of
different lengths need no padding logic. It is also the step-by-step form that the chunk form is tested against.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from ling_runtime.training.choice import Choice, Sampling
from ling_runtime.training.dense import PLAIN, embed, feed_forward, logits
from ling_runtime.training.kda import KdaInputs, recurrent_step
from ling_runtime.training.layers import Params, kda_output, kda_project, mla_output, mla_project, rms, under, wide
from ling_runtime.training.replay import Replay

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ling_runtime.config import ModelConfig


@dataclass
class Decoder:
    """State of a batch of sequences of at most `capacity` tokens, advanced one position at a time, all in place."""

    params: Params
    config: ModelConfig
    batch: int
    capacity: int
    states: dict[int, Tensor] = field(default_factory=dict)
    past: dict[int, Tensor] = field(default_factory=dict)
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        config, new = self.config, wide(self.params["model.norm.weight"]).new_zeros
        heads, width, batch = config.num_attention_heads, config.head_dim, self.batch
        self.position = new(1, dtype=torch.long)
        self.layers = [under(self.params, f"model.layers.{i}.") for i in range(config.num_hidden_layers)]
        for i in config.layers(mla=False):
            self.states[i] = new(batch, heads, width, width)
            self.past[i] = new(batch, config.short_conv_kernel_size - 1, 3 * config.kda_width)
        for i in config.layers(mla=True):
            self.keys[i] = new(batch, heads, self.capacity, config.qk_head_dim)
            self.values[i] = new(batch, heads, self.capacity, config.v_head_dim)

    def step(self, ids: Tensor) -> Tensor:
        """Feed one token per sequence, ids [B]; gives the hidden state after the final norm, [B, D]."""
        config, eps = self.config, self.config.rms_norm_eps
        x = embed(self.params, ids)[:, None]
        for i, p in enumerate(self.layers):
            attend = self._mla if config.is_mla(i) else self._kda
            x = x + attend(rms(x, p["input_layernorm.weight"], eps), under(p, "attention."), i)
            x = feed_forward(x, p, config, i, PLAIN)[0]
        self.position += 1
        return rms(x, self.params["model.norm.weight"], eps)[:, 0]

    def _kda(self, x: Tensor, p: Params, layer: int) -> Tensor:
        projections = kda_project(x, p, self.config, self.past[layer])
        self.past[layer].copy_(torch.cat([self.past[layer][:, 1:], projections.raw], 1))
        row = KdaInputs(*(value[:, 0] for value in projections.inputs))
        state, out = recurrent_step(self.states[layer], row)
        self.states[layer].copy_(state)
        return kda_output(out[:, None], projections.gate, p, self.config)

    def _mla(self, x: Tensor, p: Params, layer: int) -> Tensor:
        q, k, v, gate = mla_project(x, p, self.config, self.position)
        self.keys[layer].index_copy_(2, self.position, k)
        self.values[layer].index_copy_(2, self.position, v)
        written = torch.arange(self.capacity, device=x.device)[None] <= self.position
        return mla_output(
            F.scaled_dot_product_attention(q, self.keys[layer], self.values[layer], attn_mask=written), gate, p
        )


def generate_greedily(params: Params, config: ModelConfig, prompts: Sequence[Sequence[int]], length: int) -> Tensor:
    """Continue every prompt greedily to `length` tokens in all; gives ids [B, length] on the parameters' device."""
    device = params["lm_head.weight"].device
    rows = [Sampling()] * len(prompts)
    return generate(params, config, prompts, length, Choice.of(rows, [0] * len(prompts), device))


@torch.inference_mode()
def generate(
    params: Params, config: ModelConfig, prompts: Sequence[Sequence[int]], length: int, choice: Choice
) -> Tensor:
    """Continue every prompt to `length` tokens in all, as `choice` says; gives ids [B, length]."""
    device = params["lm_head.weight"].device
    ids = torch.zeros(len(prompts), length, dtype=torch.long)
    for row, prompt in zip(ids, prompts, strict=True):
        row[: len(prompt)] = torch.tensor(prompt)
    given = torch.tensor([len(prompt) for prompt in prompts], device=device)[:, None]
    decoder = Decoder(params, config, len(prompts), length)

    def advance(ids: Tensor) -> Tensor:
        here = decoder.position.clone()
        chosen = choice(logits(params, decoder.step(ids.index_select(1, here)[:, 0])), here + 1)
        following = ids.index_select(1, here + 1)
        return ids.index_copy_(1, here + 1, torch.where(given > here + 1, following, chosen))

    replay, ids = Replay(advance), ids.to(device)
    for _ in range(length - 1):
        ids = replay(ids)
    return ids.clone()
