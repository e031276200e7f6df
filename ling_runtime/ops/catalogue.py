"""The list of operator files: importing this registers every variant."""

from __future__ import annotations

from ling_runtime.ops import (
    dense,
    draft,
    draft_block,
    head,
    kda,
    linear,
    mla,
    moe,
    moe_block,
    moe_layer,
    norm,
    prompt,
    router,
)
from ling_runtime.ops.cuda import variants as cuda_variants
from ling_runtime.ops.triton import variants as triton_variants

__all__ = [
    "cuda_variants",
    "dense",
    "draft",
    "draft_block",
    "head",
    "kda",
    "linear",
    "mla",
    "moe",
    "moe_block",
    "moe_layer",
    "norm",
    "prompt",
    "router",
    "triton_variants",
]
