"""Prompts by their own kernels: the reference's tokens, whatever the parts, with and without a draft."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from tests.ling_runtime.interpreted import DEVICE  # isort: skip - before anything of Triton

import ling_runtime
from ling_runtime.executor.build import ExecutorSettings, build_executor, load_executor
from ling_runtime.executor.graph_settings import GraphSettings
from ling_runtime.executor.graphs import DEVICE_VARIANTS
from ling_runtime.executor.interface import Admission
from ling_runtime.ops.prompt import PROMPT_CHUNK, PROMPT_VARIANTS
from ling_runtime.tokenizer import Tokenizer
from ling_runtime.training.problems.generate import generate as problems
from ling_runtime.weights import initialise
from tests.ling_runtime.executor.driving import advance, prompt_of, start

if TYPE_CHECKING:
    from ling_runtime.config import ModelConfig
    from ling_runtime.executor.step import StepExecutor
    from ling_runtime.memory.caches import Pass
    from ling_runtime.memory.window import Window
    from ling_runtime.model.ling import TargetRows

pytestmark = pytest.mark.usefixtures("interpreter")
PROMPT = prompt_of(1, PROMPT_CHUNK + 21)
SHIPPED = Path(ling_runtime.__file__).parent / "checkpoints/ling_tiny"
ON_CARD = DEVICE.type == "cuda"
ON_CPU_SLOW = pytest.mark.gpu if ON_CARD else pytest.mark.slow
CHOSEN = PROMPT_VARIANTS | ({} if ON_CARD else {"prompt_router": "reference"})
"""The interpreter takes the router's selection row by row; it has a test of its own."""


@pytest.fixture(scope="module")
def two_layers(small_config: ModelConfig) -> ModelConfig:
    """A KDA layer with a dense one and an MLA layer with experts, of few heads."""
    limits = {"expert_swiglu_limit_list": (0.0, 0.4), "share_expert_swiglu_limit_list": (0.0, 0.7)}
    return replace(small_config, num_hidden_layers=2, num_attention_heads=2, **limits)


def build(config: ModelConfig, kernels: dict[str, str], *, chunk: int = 512, steps: int = 0) -> StepExecutor:
    on_card = DEVICE_VARIANTS if ON_CARD else {}
    settings = ExecutorSettings(
        num_steps=steps, max_requests=2, context_length=256, device=str(DEVICE), kernels=on_card | kernels, chunk=chunk
    )
    return build_executor(config, initialise(config, seed=3), settings)


def served(executor: StepExecutor, steps: int) -> tuple[list[int], torch.Tensor]:
    """Tokens of a prompt and some steps behind it, and their logprobs."""
    stream = start(executor, PROMPT, 24)
    for _ in range(steps):
        advance(executor, [stream])
    return stream.tokens, torch.tensor(stream.logprobs)


@pytest.mark.whole
def test_tokens_and_drafts_follow_the_reference(two_layers: ModelConfig) -> None:
    """The draft's cache and seed come out of the same pass: with wrong ones tokens would stay and acceptance fall."""
    ours, reference = (build(two_layers, kernels, steps=2) for kernels in (CHOSEN, {}))
    (tokens, logprobs), (want, want_logprobs) = served(ours, 2), served(reference, 2)
    assert tokens == want
    torch.testing.assert_close(logprobs, want_logprobs, rtol=1e-4, atol=1e-4)
    assert ours.speculation_report() == reference.speculation_report()
    calls = {row["operator"]: (row["variant"], row["calls"]) for row in ours.kernel_report()}
    assert all(calls[operator][0] == name and calls[operator][1] for operator, name in CHOSEN.items())
    rows = ours._proposer.seeds[1][1], reference._proposer.seeds[1][1]  # type: ignore[union-attr]
    torch.testing.assert_close(*rows, rtol=1e-3, atol=1e-4)


@ON_CPU_SLOW
def test_parts_of_a_prompt_change_no_bit(two_layers: ModelConfig) -> None:
    """One part or two; a size between multiples of 64 is rounded down to one. The interpreter's products have other
    bits where a pair lies elsewhere in its expert's tile, so there the claim is rounding alone.
    """
    whole, cut = build(two_layers, CHOSEN), build(two_layers, CHOSEN, chunk=PROMPT_CHUNK + 15)
    slot = cut.admit(Admission(PROMPT, 24))
    assert [cut.prefill(slot).done for _ in range(2)] == [False, True]
    cut.release(slot)
    (tokens, logprobs), (want, want_logprobs) = served(cut, 1), served(whole, 1)
    assert tokens == want
    torch.testing.assert_close(logprobs, want_logprobs, rtol=0, atol=0 if ON_CARD else 1e-5)
    for one, other in zip(*(e._caches.recurrent.snapshot(1) for e in (cut, whole)), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0 if ON_CARD else 1e-5)


needs_card = pytest.mark.skipif(not ON_CARD, reason="needs a CUDA device")


@pytest.mark.gpu
@needs_card
def test_nothing_in_a_pass_waits_for_the_device(two_layers: ModelConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = build(two_layers, PROMPT_VARIANTS, steps=2)
    served(executor, 0)  # compiles
    executor = build(two_layers, PROMPT_VARIANTS, steps=2)
    forward = executor._forward

    def watched(window: Window, ids: torch.Tensor) -> tuple[Pass, TargetRows]:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return forward(window, ids)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(executor, "_forward", watched)
    served(executor, 0)


@pytest.mark.gpu
@needs_card
def test_the_shipped_miniature_says_on_a_card_what_it_says_on_a_cpu() -> None:
    """Fp32 products are IEEE; prompts in one part, or in parts of 64."""
    cpu = shipped("cpu", {})
    for chunk in (512, PROMPT_CHUNK):
        assert shipped("cuda", DEVICE_VARIANTS | PROMPT_VARIANTS, chunk=chunk) == cpu


@pytest.mark.gpu
@needs_card
def test_in_bf16_neither_parts_nor_drafts_change_a_token() -> None:
    kernels = DEVICE_VARIANTS | PROMPT_VARIANTS
    plain = shipped("cuda", kernels, dtype="bfloat16")
    for steps, chunk in ((0, PROMPT_CHUNK), (3, 512), (5, 2 * PROMPT_CHUNK)):
        assert shipped("cuda", kernels, dtype="bfloat16", steps=steps, chunk=chunk) == plain, (steps, chunk)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_shipped_miniature_reads_a_prompt_alike_in_the_interpreter() -> None:
    """All twelve layers with their own widths, of which none is the small model's."""
    want = shipped("cpu", {}, prompts=1, tokens=2)
    assert shipped(str(DEVICE), CHOSEN, prompts=1, tokens=2) == want


def shipped(
    device: str,
    kernels: dict[str, str],
    *,
    dtype: str = "float32",
    steps: int = 0,
    chunk: int = 512,
    prompts: int = 6,
    tokens: int = 96,
) -> list[list[int]]:
    """Greedy tokens of the miniature behind held-out problems, some with worked ones before them."""
    settings = ExecutorSettings(
        num_steps=steps, context_length=1024, dtype=dtype, device=device, kernels=kernels, chunk=chunk,
        graphs=GraphSettings() if device == "cuda" else None,
    )  # fmt: skip
    executor, tokenizer = load_executor(str(SHIPPED), settings), Tokenizer.from_pretrained(SHIPPED)
    drawn = list(problems(seed=11, num=4 * prompts, split="heldout"))
    found = []
    for i in range(prompts):
        shots = "".join(f"Question: {p.question}\nAnswer: {p.answer}\n\n" for p in drawn[4 * i : 4 * i + i % 3])
        ids = tokenizer.encode(f"{shots}Question: {drawn[4 * i + 3].question}\nAnswer:")
        slot = executor.admit(Admission(ids, tokens))
        while not (out := executor.prefill(slot)).done:
            pass
        assert out.token is not None
        stream = [out.token]
        while len(stream) < tokens:
            stream += executor.decode([slot])[slot].tokens
        executor.release(slot)
        found.append(stream[:tokens])
    return found
