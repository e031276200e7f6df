"""The floor of a prompt: operations at a rate that good kernels reach, or bytes at the card's own, by operator family.

A family of kernels is what one of them would be if they were fused: its floor is the larger of the two. The surprise
is the walk of the recurrence, which has next to no work and a chain of a hundred steps: its floor here says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ling_runtime.ops.prompt import PROMPT_CHUNK

if TYPE_CHECKING:
    from ling_runtime.config import ModelConfig

PRODUCTS, ATTENTION, TF32 = 500e12, 300e12, 250e12
"""Operations per second: bf16 products, attention, products of tf32; a third to a half of what a card's sheet says."""


@dataclass(frozen=True)
class Work:
    """What a family has to do for a whole prompt."""

    flops: float
    bytes: float
    rate: float = PRODUCTS

    def floor_ms(self, bandwidth: float) -> float:
        return max(self.flops / self.rate, self.bytes / bandwidth) * 1e3


KERNELS = {
    "_wide": "dense products",
    "_gates": "router",
    "_select": "router",
    "_count": "pairs by expert",
    "_plan": "pairs by expert",
    "_order": "pairs by expert",
    "_up": "experts up",
    "_down": "experts down",
    "_settle": "sums and norms",
    "_norm": "sums and norms",
    "_ready": "KDA rows",
    "_couple": "KDA chunks",
    "_solve": "KDA chunks",
    "_walk_chunks": "KDA walk",
    "_read_chunks": "KDA reading",
    "_keep": "MLA keys, values",
    "_expand": "MLA keys, values",
    "_attend_prompt": "MLA attention",
}
REST = "torch and the rest"


def work(config: ModelConfig, *, rows: int, part: int, draft: bool) -> dict[str, Work]:
    """Of `rows` rows in parts of `part`, through all layers and with `draft` the NEXTN layer."""
    parts = -(-rows // part)
    mla, kda = len(config.layers(mla=True)) + draft, len(config.layers(mla=False))
    experts, hidden = config.num_moe_layers + draft, config.hidden_size
    slots = config.num_experts_per_tok + config.num_shared_experts
    return {
        "dense products": _dense(config, rows, kda, mla, parts, draft=draft),
        **_experts(config, rows, experts, parts),
        "sums and norms": Work(0, 2.0 * rows * hidden * (4 * (kda + mla) + 3 * (kda + mla) + slots * experts)),
        **_recurrence(config, rows, kda),
        **_attention(config, rows, part, mla),
    }


def _dense(config: ModelConfig, rows: int, kda: int, mla: int, parts: int, *, draft: bool) -> Work:
    size, heads, hidden = config.kda_width, config.num_attention_heads, config.hidden_size
    of_kda = hidden * (5 * size + heads) + size * hidden
    of_mla = hidden * (heads * config.qk_head_dim + config.latent_width + heads) + heads * config.v_head_dim * hidden
    of_dense = 3 * hidden * config.intermediate_size * config.first_k_dense_replace
    weights = kda * of_kda + mla * of_mla + of_dense + draft * 2 * hidden * hidden
    return Work(2.0 * rows * weights, 2.0 * weights * parts)


def _experts(config: ModelConfig, rows: int, layers: int, parts: int) -> dict[str, Work]:
    """The gate as three products of bf16; each pair's row read and written, every expert's weights once a part."""
    hidden, inner, count = config.hidden_size, config.moe_intermediate_size, config.num_experts
    pairs = rows * (config.num_experts_per_tok + config.num_shared_experts)
    matrix = hidden * inner * (count + config.num_shared_experts) * parts
    return {
        "router": Work(layers * 6.0 * rows * hidden * count, layers * rows * (2.0 * hidden + 8 * count)),
        "pairs by expert": Work(0, layers * 30.0 * rows * config.num_experts_per_tok),
        "experts up": Work(layers * 4.0 * pairs * hidden * inner, layers * 2.0 * (2 * matrix + pairs * inner)),
        "experts down": Work(layers * 2.0 * pairs * hidden * inner, layers * 2.0 * (matrix + pairs * (inner + hidden))),
    }


def _recurrence(config: ModelConfig, rows: int, layers: int) -> dict[str, Work]:
    width, chunk = config.head_dim, PROMPT_CHUNK
    values, of_chunks = layers * rows * config.kda_width, layers * rows / chunk * config.num_attention_heads
    solve = 4 * 2 * chunk**3 + 4 * 2 * chunk * chunk * width
    states = 4.0 * of_chunks * width * width
    return {
        "KDA rows": Work(0, values * (4 * 2 + 3 * 4 + 2)),
        "KDA chunks": Work(of_chunks * solve, values * (3 * 4 + 2 + 3 * 4.0), TF32),
        "KDA walk": Work(of_chunks * 4 * chunk * width * width, values * 4 * 4 + states, TF32),
        "KDA reading": Work(of_chunks * (2 * chunk * width * (width + chunk)), values * (3 * 4 + 2 * 2) + states, TF32),
    }


def _attention(config: ModelConfig, rows: int, part: int, layers: int) -> dict[str, Work]:
    """Keys and values of a part's whole context are made anew for each part."""
    heads, made = config.num_attention_heads, sum(min(end, rows) for end in range(part, rows + part, part))
    expanded = heads * (config.qk_nope_head_dim + config.v_head_dim)
    each = heads * (config.qk_head_dim + config.v_head_dim)
    return {
        "MLA keys, values": Work(layers * 2.0 * made * config.kv_lora_rank * expanded, layers * 2.0 * made * expanded),
        "MLA attention": Work(layers * each * float(rows) * rows, layers * 2.0 * made * expanded, ATTENTION),
    }
