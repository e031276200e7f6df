"""The two attention layers: KDA (recurrent) and gated MLA (latent cache), each one projection in, one out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from ling_runtime.ops.kda import KdaWeights
from ling_runtime.ops.mla import MlaWeights
from ling_runtime.ops.prompt import project

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.config import ModelConfig
    from ling_runtime.memory.caches import Pass
    from ling_runtime.model.packing import Packer
    from ling_runtime.ops.registry import Kernels


class KdaAttention:
    """`index` counts KDA layers, which is how the state pool is ordered."""

    def __init__(self, config: ModelConfig, weights: Packer, index: int, kernels: Kernels) -> None:
        heads, width = config.num_attention_heads, config.head_dim
        self._index = index
        self._kernels = kernels
        self._into = weights.stack(*(f"{x}_proj" for x in "qkvfgb"))
        decay = weights.wide("A_log").exp().repeat_interleave(width)
        self._weights = KdaWeights(
            conv=torch.cat([weights.wide(f"{x}_conv1d.weight").squeeze(1) for x in "qkv"]),
            gate_scale=F.pad(decay, (0, heads * (width + 1)), value=1.0),
            gate_bias=F.pad(decay * weights.wide("dt_bias"), (0, heads * (width + 1))),
            o_norm=weights.wide("o_norm.weight"),
            out=weights("o_proj.weight"),
            lower_bound=config.kda_lower_bound,
            eps=config.rms_norm_eps,
        )

    def __call__(self, x: Tensor, pass_: Pass) -> Tensor:
        pool, window, kernels = pass_.recurrent, pass_.window, self._kernels
        state = pool.read(self._index, window)
        projected = project(kernels, window.prompt, x, self._into)
        if window.prompt:
            rows, staged = kernels["prompt_kda"](projected, window, self._weights, state, kernels)
        else:
            rows, staged = kernels["kda_window"](projected, window, self._weights, state, kernels["linear"])
        pool.stage(self._index, staged)
        return rows  # type: ignore[no-any-return]


class MlaAttention:
    """`index` counts cache layers; `kv_b_proj` is split per head into the key and value halves."""

    def __init__(self, config: ModelConfig, weights: Packer, index: int, rope: Tensor, kernels: Kernels) -> None:
        heads, nope = config.num_attention_heads, config.qk_nope_head_dim
        self._index = index
        self._kernels = kernels
        self._into = weights.stack("q_proj", "kv_a_proj_with_mqa", "g_proj")
        self._out = weights("dense.weight")
        up = weights("kv_b_proj.weight").view(heads, nope + config.v_head_dim, config.kv_lora_rank)
        self._weights = MlaWeights(
            kv_norm=weights("kv_a_layernorm.weight"),
            key_up=up[:, :nope].contiguous(),
            value_up=up[:, nope:].transpose(1, 2).contiguous(),
            rope=rope,
            scale=config.attention_scale,
            eps=config.rms_norm_eps,
        )

    def __call__(self, x: Tensor, pass_: Pass) -> Tensor:
        window, kernels = pass_.window, self._kernels
        projected, cache = project(kernels, window.prompt, x, self._into), pass_.latent_view(self._index)
        if window.prompt:
            o = kernels["prompt_mla"](projected, cache, self._weights, kernels)
        else:
            o = kernels["mla_window"](projected, cache, self._weights)
        return project(kernels, window.prompt, o, self._out)
