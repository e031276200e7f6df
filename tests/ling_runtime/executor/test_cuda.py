"""The same executor on a CUDA device: the CPU's greedy tokens, and none changed by windows or chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from ling_runtime.executor.build import ExecutorSettings, build_executor
from ling_runtime.executor.draft import DraftSettings
from ling_runtime.executor.interface import GREEDY
from ling_runtime.weights import initialise
from tests.ling_runtime.executor.driving import Stream, generate, prompt_of, warm

if TYPE_CHECKING:
    from ling_runtime.config import ModelConfig
    from tests.ling_runtime.conftest import WriteDraft

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
TOKENS = 64


def run(config: ModelConfig, steps: int, dtype: str, device: str = "cuda", chunk: int = 512) -> list[Stream]:
    settings = ExecutorSettings(num_steps=steps, dtype=dtype, device=device, chunk=chunk, context_length=1024)
    executor = build_executor(config, initialise(config, seed=3), settings)
    sampling = (GREEDY, GREEDY, warm(3))
    return [generate(executor, prompt_of(i, 20 + 37 * i), TOKENS, one) for i, one in enumerate(sampling)]


def test_fp32_gives_the_tokens_of_the_cpu(small_config: ModelConfig) -> None:
    ours = run(small_config, 3, "float32")
    theirs = run(small_config, 3, "float32", device="cpu")
    assert [s.tokens for s in ours] == [s.tokens for s in theirs]
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(torch.tensor(one.logprobs), torch.tensor(other.logprobs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 0.1)])
def test_windows_and_chunks_change_no_token(small_config: ModelConfig, dtype: str, tolerance: float) -> None:
    """The vendor's batched products pick other kernels for other tile counts: here bits hold on the CPU only."""
    plain = run(small_config, 0, dtype)
    for steps, chunk in ((1, 512), (3, 512), (5, 7), (16, 64)):
        other = run(small_config, steps, dtype, chunk=chunk)
        for one, two in zip(other, plain, strict=True):
            torch.testing.assert_close(
                torch.tensor(one.logprobs[:8]), torch.tensor(two.logprobs[:8]), rtol=0, atol=tolerance
            )
            if dtype == "float32":
                assert one.tokens == two.tokens, (steps, chunk)


@pytest.mark.parametrize("structure", ["mha", "mla"])
def test_blocks_of_drafts_leave_the_tokens_of_the_cpu(
    small_config: ModelConfig, write_draft: WriteDraft, structure: str
) -> None:
    widths = {"kv_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12}
    draft = DraftSettings(path=write_draft(attention_type=structure, markov_head_type="rnn", **widths))
    cpu = run(small_config, 0, "float32", device="cpu")
    settings = ExecutorSettings(draft=draft, device="cuda", context_length=1024, chunk=64)
    executor = build_executor(small_config, initialise(small_config, seed=3), settings)
    for i, one in enumerate(cpu[:2]):
        assert generate(executor, prompt_of(i, 20 + 37 * i), TOKENS).tokens == one.tokens
    sampled = generate(executor, prompt_of(2, 94), TOKENS, warm(3))
    assert sampled.tokens == generate(executor, prompt_of(2, 94), TOKENS, warm(3)).tokens
