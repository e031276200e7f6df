"""Drawn weights at full width, on a card: whoever asks, however many rows a step has, the tokens are the same.

Logits of drawn weights lie close together, so one bit anywhere in a row soon changes a token: whoever asks for logprobs
gets them launch by launch and chooses from whole logits, others are replayed and never see one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch

from tests.ling_runtime.interpreted import DEVICE  # isort: skip - before anything of Triton

from experiments.step_bench import SHARD
from experiments.step_subject import STACKS
from ling_runtime.executor.build import ExecutorSettings, load_executor
from ling_runtime.executor.graph_settings import GraphSettings
from ling_runtime.ops.prompt import PROMPT_VARIANTS
from tests.ling_runtime.executor.driving import generate, greedy

if TYPE_CHECKING:
    from pathlib import Path

    from ling_runtime.executor.step import StepExecutor

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
LAYERS, TOKENS, TOGETHER = 12, 64, 3
PROMPTS = [torch.randint(39000, (length,), generator=torch.Generator().manual_seed(length)).tolist()
           for length in (3, 16, 100, 257, 700, 1100)]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first twelve layers of one rank's model: two dense ones, two of MLA."""
    path: Path = tmp_path_factory.mktemp("model")
    config = json.loads((SHARD / "config.json").read_text()) | {"num_hidden_layers": LAYERS}
    limits = {name: value[:LAYERS] for name, value in config.items() if name.endswith("swiglu_limit_list")}
    (path / "config.json").write_text(json.dumps(config | limits))
    return path


def executor(model: Path, steps: int, stack: str) -> StepExecutor:
    settings = ExecutorSettings(
        num_steps=steps, max_requests=TOGETHER, context_length=2048, dtype="bfloat16", device=str(DEVICE),
        kernels=STACKS[stack].selection | PROMPT_VARIANTS, graphs=GraphSettings(pdl="early"), load_format="dummy",
    )  # fmt: skip
    return load_executor(str(model), settings)


@pytest.mark.parametrize("stack", ["default", "triton"])
def test_tokens_are_the_same_whoever_asks(model: Path, stack: str) -> None:
    replayed = executor(model, 0, stack)
    want = greedy(replayed, PROMPTS, TOKENS, 1)
    assert len({tuple(tokens) for tokens in want}) == len(PROMPTS)
    assert greedy(replayed, PROMPTS, TOKENS, TOGETHER) == want
    assert [generate(replayed, prompt, TOKENS).tokens for prompt in PROMPTS] == want, "with logprobs"
    drafting = executor(model, 3, stack)
    assert greedy(drafting, PROMPTS, TOKENS, 1) == want
    assert greedy(drafting, PROMPTS, TOKENS, TOGETHER) == want
    assert [generate(drafting, prompt, TOKENS).tokens for prompt in PROMPTS] == want, "drafted, with logprobs"
