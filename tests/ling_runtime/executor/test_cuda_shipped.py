"""The miniature that ships, on a card: replayed steps give the CPU's greedy tokens, whatever is drafted.

Fp32 products are IEEE on both sides. In bf16 nothing is compared with the CPU: there the claim is that a row's bits do
not depend on its window, so plain decoding and every depth of drafting are equal to the byte.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import ling_runtime
from ling_runtime.executor.build import ExecutorSettings, load_executor
from ling_runtime.executor.graph_settings import GraphSettings
from ling_runtime.ops.prompt import PROMPT_VARIANTS
from ling_runtime.tokenizer import Tokenizer
from ling_runtime.training.problems.generate import generate as problems
from tests.ling_runtime.executor.driving import greedy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ling_runtime.executor.step import StepExecutor

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
PROMPTS, TOKENS, TOGETHER = 20, 256, 12
BF16_GATE = {"moe_block": "triton_gate_norm_bf16"}
SHIPPED = Path(ling_runtime.__file__).parent / "checkpoints/ling_tiny"


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Held-out problems, some behind a worked one."""
    tokenizer = Tokenizer.from_pretrained(SHIPPED)
    drawn = list(problems(seed=11, num=2 * PROMPTS, split="heldout"))
    alone = [f"Question: {p.question}\nAnswer:" for p in drawn[:PROMPTS]]
    worked = [f"Question: {p.question}\nAnswer: {p.answer}\n\n" for p in drawn[PROMPTS:]]
    texts = [shot * (i % 3) + text for i, (text, shot) in enumerate(zip(alone, worked, strict=True))]
    return [tokenizer.encode(text) for text in texts]


def executor(steps: int, dtype: str, *, device: str = "cuda", kernels: Mapping[str, str] | None = None) -> StepExecutor:
    from ling_runtime.executor.graphs import best_here, device_selection  # noqa: PLC0415 - it imports Triton

    graphs = device == "cuda"
    settings = ExecutorSettings(
        num_steps=steps, max_requests=TOGETHER, context_length=1024, dtype=dtype, device=device,
        kernels=device_selection(kernels or {}, best_here()) | PROMPT_VARIANTS if graphs else {},
        graphs=GraphSettings() if graphs else None,
    )  # fmt: skip
    return load_executor(str(SHIPPED), settings)


def test_fp32_gives_the_tokens_of_the_cpu(prompts: list[list[int]]) -> None:
    want = greedy(executor(0, "float32", device="cpu"), prompts, TOKENS, TOGETHER)
    assert len({tuple(tokens) for tokens in want}) == PROMPTS
    for steps, together in ((0, 1), (3, 1), (5, TOGETHER)):
        assert greedy(executor(steps, "float32"), prompts, TOKENS, together) == want, (steps, together)


@pytest.mark.parametrize("kernels", [{}, BF16_GATE], ids=["default", "bf16 gate"])
def test_bf16_drafting_changes_no_byte(prompts: list[list[int]], kernels: Mapping[str, str]) -> None:
    plain = greedy(executor(0, "bfloat16", kernels=kernels), prompts, TOKENS, 1)
    for steps, together in ((3, 1), (5, 1), (3, TOGETHER), (5, TOGETHER)):
        found = greedy(executor(steps, "bfloat16", kernels=kernels), prompts, TOKENS, together)
        assert found == plain, (steps, together)
