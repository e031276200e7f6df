"""Token-by-token generation for training's own use: all prompts in lockstep, with the recurrence written out.

Every row starts at position 0 and reads its prompt one token at a time before it goes on greedily, so prompts of
different lengths need no padding logic. It is also the step-by-step form that the chunk form is tested against.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from ling_runtime.training.dense import (
    PLAIN,
    Params,
    feed_forward,
    kda_output,
    kda_project,
    logits,
    mla_output,
    mla_project,
    rms,
    under,
    wide,
)
from ling_runtime.training.kda import KdaInputs, recurrent_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ling_runtime.config import ModelConfig


@dataclass
class Decoder:
    """State of a batch of sequences of at most `capacity` tokens, advanced one position at a time."""

    params: Params
    config: ModelConfig
    batch: int
    capacity: int
    position: int = 0
    states: dict[int, Tensor] = field(default_factory=dict)
    past: dict[int, Tensor] = field(default_factory=dict)
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        config, new = self.config, wide(self.params["model.norm.weight"]).new_zeros
        heads, width, batch = config.num_attention_heads, config.head_dim, self.batch
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
        x = self.params["model.word_embeddings.weight"][ids][:, None]
        for i, p in enumerate(self.layers):
            attend = self._mla if config.is_mla(i) else self._kda
            x = x + attend(rms(x, p["input_layernorm.weight"], eps), under(p, "attention."), i)
            normed = rms(x, p["post_attention_layernorm.weight"], eps)
            x = x + feed_forward(normed, under(p, "mlp."), config, i, PLAIN)[0]
        self.position += 1
        return rms(x, self.params["model.norm.weight"], eps)[:, 0]

    def _kda(self, x: Tensor, p: Params, layer: int) -> Tensor:
        projections = kda_project(x, p, self.config, self.past[layer])
        self.past[layer] = torch.cat([self.past[layer], projections.raw], 1)[:, 1:]
        row = KdaInputs(*(value[:, 0] for value in projections.inputs))
        self.states[layer], out = recurrent_step(self.states[layer], row)
        return kda_output(out[:, None], projections.gate, p, self.config)

    def _mla(self, x: Tensor, p: Params, layer: int) -> Tensor:
        here = self.position
        q, k, v, gate = mla_project(x, p, self.config, torch.tensor([here], device=x.device))
        self.keys[layer][:, :, here : here + 1] = k
        self.values[layer][:, :, here : here + 1] = v
        keys, values = self.keys[layer][:, :, : here + 1], self.values[layer][:, :, : here + 1]
        return mla_output(F.scaled_dot_product_attention(q, keys, values), gate, p)


@torch.inference_mode()
def generate_greedily(params: Params, config: ModelConfig, prompts: Sequence[Sequence[int]], length: int) -> Tensor:
    """Continue every prompt greedily to `length` tokens in all; gives ids [B, length] on the parameters' device."""
    device = params["lm_head.weight"].device
    ids = torch.zeros(len(prompts), length, dtype=torch.long)
    given = torch.tensor([len(prompt) for prompt in prompts], device=device)
    for row, prompt in zip(ids, prompts, strict=True):
        row[: len(prompt)] = torch.tensor(prompt[:length])
    ids = ids.to(device)
    decoder = Decoder(params, config, len(prompts), length)
    for t in range(length - 1):
        best = logits(params, decoder.step(ids[:, t])).argmax(-1)
        ids[:, t + 1] = torch.where(given > t + 1, ids[:, t + 1], best)
    return ids
