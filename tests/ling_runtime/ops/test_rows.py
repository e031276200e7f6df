"""Why speculation may be held to exact equality: every operator gives a row the same bits in every window.

One stream of rows runs through each operator in windows of 1 (plain decoding), and again in windows of 2, 4, 6, 9 and
17 that advance by one row, so that every row is seen at every place of every window. An operator without a case fails
here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ling_runtime.memory.caches import Caches
from ling_runtime.memory.window import Window
from ling_runtime.ops.kda import KdaWeights
from ling_runtime.ops.linear import linear, pad_rows
from ling_runtime.ops.mla import MlaWeights
from ling_runtime.ops.moe import align_by_expert, run_experts
from ling_runtime.ops.moe_layer import MoeWeights
from ling_runtime.ops.registry import Kernels, Variant, variants
from ling_runtime.ops.rope import rope_table
from ling_runtime.ops.router import RouterWeights

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.config import ModelConfig
    from ling_runtime.memory.caches import Pass

OF_A_BLOCK = {"draft_attention", "draft_block", "draft_chain", "draft_inject"}
"""Sees all rows of its block at once, request by request: test_dspark_step.py holds it to its neighbours."""

OF_A_PROMPT = {f"prompt_{name}" for name in ("linear", "router", "moe", "kda", "mla")}
"""See no windows but parts of a prompt: test_prompt_kernels.py cuts one."""

WINDOWS = (1, 2, 4, 6, 9, 17)
STREAM = 70
Run = Callable[[Callable[..., Any], "Tensor", "Pass"], "Tensor"]


@dataclass(frozen=True)
class Case:
    """How to call an operator on rows [T, width] of a pass, giving [T, ...]."""

    width: int
    run: Run


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def cases(config: ModelConfig, dtype: torch.dtype = torch.float32) -> dict[str, Case]:
    hidden, heads, width = config.hidden_size, config.num_attention_heads, config.head_dim
    weight, norm = draw(hidden, hidden).to(dtype), 1 + 0.1 * draw(hidden)
    router = RouterWeights(
        gate=draw(config.num_experts, hidden),
        bias=0.1 * draw(config.num_experts),
        groups=config.n_group,
        kept_groups=config.topk_group,
        experts_per_row=config.num_experts_per_tok,
        scale=2.5,
    )
    kda = KdaWeights(
        conv=draw(3 * heads * width, 4),
        gate_scale=draw(heads * (2 * width + 1)).exp(),
        gate_bias=draw(heads * (2 * width + 1)),
        o_norm=1 + 0.1 * draw(width),
        out=draw(hidden, heads * width).to(dtype),
        lower_bound=config.kda_lower_bound,
        eps=1e-6,
    )
    mla = MlaWeights(
        kv_norm=1 + 0.1 * draw(config.kv_lora_rank),
        key_up=draw(heads, config.qk_nope_head_dim, config.kv_lora_rank).to(dtype),
        value_up=draw(heads, config.kv_lora_rank, config.v_head_dim).to(dtype),
        rope=rope_table(config, STREAM + max(WINDOWS)).float(),
        scale=config.attention_scale,
        eps=1e-6,
    )
    gate_up = draw(config.num_experts, 2 * config.moe_intermediate_size, hidden).to(dtype)
    down = draw(config.num_experts, hidden, config.moe_intermediate_size).to(dtype)
    ids = draw(STREAM + 17, config.num_experts).argsort(-1)[:, : config.num_experts_per_tok]

    def experts(align: Callable[..., Any], run: Callable[..., Any], x: Tensor, pass_: Pass) -> Tensor:
        start = pass_.window.starts[0]
        mine = ids[start : start + len(x)]
        out = run(x.repeat_interleave(mine.shape[1], 0), align(mine, config.num_experts), gate_up, down, 0.4)
        assert isinstance(out, torch.Tensor)
        return out.view(*mine.shape, -1)

    def recurrent(op: Callable[..., Any], x: Tensor, pass_: Pass) -> Tensor:
        out, staged = op(pad_rows(x), pass_.window, kda, pass_.recurrent.read(0, pass_.window), linear)
        pass_.recurrent.stage(0, staged)
        pass_.recurrent.commit(pass_.window, torch.tensor([1]))
        return out

    moe = MoeWeights(
        router=router,
        gate_up=gate_up,
        down=down,
        experts=config.num_experts,
        limit=0.4,
        shared_up=gate_up[0],
        shared_down=down[0],
        shared_limit=0.7,
        joined=False,
    )
    per_row = draw(STREAM + 17, config.num_experts_per_tok)
    return {
        "linear": Case(hidden, lambda op, x, _: op(pad_rows(x), weight)),
        "rms_norm": Case(hidden, lambda op, x, _: op(pad_rows(x), norm, 1e-6)),
        "add_rms_norm": Case(
            hidden, lambda op, x, _: torch.cat(op(pad_rows(x), pad_rows(x.sin()), norm, 1e-6), dim=-1)
        ),
        "router": Case(hidden, lambda op, x, _: torch.cat([t.double() for t in op(pad_rows(x), router)], dim=-1)),
        "moe_align": Case(hidden, lambda op, x, p: experts(op, run_experts, x, p)),
        "moe_experts": Case(hidden, lambda op, x, p: experts(align_by_expert, op, x, p)),
        "moe_combine": Case(
            hidden,
            lambda op, x, p: op(
                x.unsqueeze(1) * torch.arange(1.0, 1 + per_row.shape[1])[:, None],
                per_row[p.window.starts[0] : p.window.starts[0] + len(x)],
            ),
        ),
        "moe": Case(
            hidden,
            lambda op, x, _: torch.cat(op(pad_rows(x), pad_rows(x.sin()), norm, 1e-6, len(x), moe, Kernels()), dim=-1),
        ),
        "moe_block": Case(
            hidden,
            lambda op, x, _: torch.cat(
                op(pad_rows(x), pad_rows(x.sin()), norm, norm, 1e-6, len(x), moe, Kernels()), dim=-1
            ),
        ),
        "dense_mlp": Case(hidden, lambda op, x, _: op(pad_rows(x), gate_up[1], down[1], 0.4, Kernels())),
        "greedy_head": Case(hidden, lambda op, x, _: op(x, weight)),
        "shard_head": Case(hidden, lambda op, x, _: op(x, weight, 7)),
        "draft_choice": Case(hidden, lambda op, x, _: op(x, x.sin(), dtype, None)[0]),
        "lm_head": Case(hidden, lambda op, x, _: op(pad_rows(x), weight)),
        "kda_window": Case(5 * heads * width + heads, recurrent),
        "mla_window": Case(
            heads * config.qk_head_dim + config.latent_width + heads,
            lambda op, x, p: op(pad_rows(x), p.latent_view(0), mla),
        ),
    }


PORTABLE = [
    v for v in variants() if v.operator not in OF_A_BLOCK | OF_A_PROMPT and ".triton." not in v.function.__module__
]
"""Variants that run on any device; the others are held to the same in test_triton."""


def outputs(case: Case, op: Callable[..., Any], config: ModelConfig, dtype: torch.dtype, rows: int) -> list[Tensor]:
    """The stream in windows of `rows`, each advancing by one: outputs [T, ...] per window."""
    stream = draw(STREAM + max(WINDOWS), case.width).to(dtype)
    caches = Caches(config, max_requests=1, pages=4, dtype=dtype, device=torch.device("cpu"))
    slot = caches.reserve(STREAM + 2 * max(WINDOWS))
    found = []
    for start in range(STREAM):
        window = Window(slots=(slot,), starts=(start,), rows=rows)
        found.append(case.run(op, stream[start : start + rows], caches.begin(window))[:rows])
    return found


def stream_of_one(case: Case, op: Callable[..., Any], config: ModelConfig, dtype: torch.dtype) -> Tensor:
    return torch.cat(outputs(case, op, config, dtype, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("one", PORTABLE, ids=lambda v: f"{v.operator}-{v.name}")
def test_row_bits_depend_on_neither_window_nor_place(
    one: Variant, dtype: torch.dtype, small_config: ModelConfig
) -> None:
    case = cases(small_config, dtype)[one.operator]
    plain = stream_of_one(case, one.function, small_config, dtype)
    assert plain.float().std() > 0
    for rows in WINDOWS[1:]:
        for start, window in enumerate(outputs(case, one.function, small_config, dtype, rows)):
            inside = min(rows, STREAM - start)
            assert torch.equal(window[:inside], plain[start : start + inside]), f"window {rows} at row {start}"


def test_every_operator_has_a_case(small_config: ModelConfig) -> None:
    assert set(cases(small_config)) | OF_A_BLOCK | OF_A_PROMPT == {v.operator for v in variants()}
