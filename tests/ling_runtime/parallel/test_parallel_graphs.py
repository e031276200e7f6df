"""The device's operators over two ranks, in Triton's interpreter: steps on graphs say what one eager rank says.

On a CPU nothing is captured; every variant that ends a layer meets the sum over ranks here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.ling_runtime.interpreted import DEVICE  # isort: skip - before anything of Triton

from ling_runtime.executor.graph_settings import GraphSettings
from ling_runtime.executor.graphs import RANK_VARIANTS, missing_variants
from ling_runtime.executor.interface import Admission
from ling_runtime.ops.prompt import PROMPT_VARIANTS
from ling_runtime.ops.registry import Kernels
from ling_runtime.parallel.communicator import ALONE
from ling_runtime.weights import initialise
from tests.ling_runtime.executor.driving import prompt_of
from tests.ling_runtime.parallel.ranks import executor, together

if TYPE_CHECKING:
    from ling_runtime.config import ModelConfig
    from ling_runtime.executor.step import StepExecutor

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("interpreter"),
    pytest.mark.skipif(DEVICE.type == "cuda", reason="ranks of one process share one card; NCCL wants one each"),
]


def answered(built: StepExecutor, steps: int) -> list[list[int]]:
    """Tokens of two requests after `steps` steps."""
    slots = []
    for seed, length in ((1, 14), (2, 9)):
        slots.append(built.admit(Admission(prompt_of(seed, length), 24)))
        built.prefill(slots[-1])
    found: list[list[int]] = [[], []]
    for _ in range(steps):
        for tokens, out in zip(found, built.decode(slots).values(), strict=False):
            tokens.extend(out.tokens)
    return found


@pytest.mark.parametrize(
    ("steps", "overlap", "kernels"),
    [
        (0, False, {"moe_block": "reference"}),
        (2, True, {}),
        (0, False, {"moe_block": "triton_gate_norm_bf16"} | PROMPT_VARIANTS),
        (0, False, {"moe_block": "reference", "moe": "triton_combine_rounded"}),
    ],
    ids=["moe", "nextn ahead", "gate in bf16 and prompts", "rounded combine"],
)
def test_ranks_on_device_operators_say_what_one_says(
    small_config: ModelConfig, steps: int, overlap: bool, kernels: dict[str, str]
) -> None:
    config = replace(
        small_config,
        num_hidden_layers=2,
        expert_swiglu_limit_list=(0.0, 0.4),
        share_expert_swiglu_limit_list=(0.0, 0.7),
    )
    tensors, shape = initialise(config, seed=3), {"max_requests": 3, "context_length": 96, "num_steps": steps}
    alone = answered(executor(config, tensors, ALONE, **shape), 4 - overlap)
    ranks = together(
        2,
        lambda ranks: answered(
            executor(
                config, tensors, ranks, graphs=GraphSettings(overlap=overlap), kernels=RANK_VARIANTS | kernels, **shape
            ),
            4,
        ),
        in_turn=True,
    )
    assert ranks == [alone, alone]


def test_the_head_of_a_shard_is_needed_of_several_ranks() -> None:
    assert missing_variants(Kernels(RANK_VARIANTS | {"shard_head": "reference"}), RANK_VARIANTS) == ["shard_head"]
