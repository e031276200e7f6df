"""The list of operator files: importing this registers every variant."""

from __future__ import annotations

from ling_runtime.ops import draft, draft_block, head, kda, linear, mla, moe, moe_layer, norm, router, triton_variants

__all__ = [
    "draft",
    "draft_block",
    "head",
    "kda",
    "linear",
    "mla",
    "moe",
    "moe_layer",
    "norm",
    "router",
    "triton_variants",
]
