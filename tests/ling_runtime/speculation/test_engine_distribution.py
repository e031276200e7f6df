"""Sampling through the whole engine: real executor, NEXTN or DSpark on, a random model with 8 tokens.

The exact probabilities are the model's own: logprobs of plain prefills over every context of a continuation.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from ling_runtime.config import ModelConfig
from ling_runtime.engine import Engine
from ling_runtime.executor.build import ExecutorSettings, build_executor
from ling_runtime.executor.draft import DraftSettings
from ling_runtime.executor.interface import Admission
from ling_runtime.request import Request
from ling_runtime.sampling import SamplingParams
from ling_runtime.speculation import verification
from ling_runtime.speculation.dspark.cost import AdditiveTable, Curve
from ling_runtime.speculation.dspark.planner import CausalPlanner
from ling_runtime.speculation.dspark.schedule import Planned
from ling_runtime.weights import initialise
from tests.ling_runtime.speculation.exact import SUSPICIOUS, count, joint, p_value

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ling_runtime.executor.step import StepExecutor
    from ling_runtime.tokenizer import Tokenizer
    from tests.ling_runtime.conftest import WriteDraft

pytestmark = pytest.mark.whole

VOCAB, LENGTH = 8, 3
PROMPT = (3, 1, 4, 1, 5)
WISHES = SamplingParams(temperature=0.9, top_p=0.97, min_p=0.02, top_k=7, ignore_eos=True)
REQUESTS = 500
RUNNING = 16


class Letters:
    """A tokenizer for eight tokens, as far as the engine asks."""

    special_ids: frozenset[int] = frozenset()

    def token_bytes(self, token: int) -> bytes:
        return bytes([ord("a") + token])


@pytest.fixture(scope="module")
def build(small_json: dict[str, Any]) -> Callable[..., StepExecutor]:
    limits = {"expert_swiglu_limit_list": [0.0, 0.5], "share_expert_swiglu_limit_list": [0.0, 0.7]}
    config = ModelConfig.from_dict(small_json | limits | {"vocab_size": VOCAB, "num_hidden_layers": 2})
    tensors = initialise(config, seed=11)
    return lambda **settings: build_executor(config, tensors, ExecutorSettings(context_length=32, **settings))


@pytest.fixture(scope="module")
def exact(build: Callable[..., StepExecutor]) -> np.ndarray:
    """[8, 8, 8] probabilities of the three tokens after the prompt."""
    plain = build()

    def logits(prefix: tuple[int, ...]) -> np.ndarray:
        slot = plain.admit(Admission(PROMPT + prefix, 1, logprobs=VOCAB))
        scored = plain.prefill(slot).logprob
        plain.release(slot)
        assert scored is not None
        return np.array([value for value, _ in sorted(scored.top, key=lambda pair: pair[1])])

    known = {prefix: logits(prefix) for length in range(LENGTH) for prefix in np.ndindex(*(VOCAB,) * length)}
    return joint(known.__getitem__, request(0).rows, VOCAB, LENGTH)


def request(seed: int) -> Request:
    return Request(id=str(seed), prompt=PROMPT, max_new_tokens=LENGTH, sampling=WISHES, seed=seed, stop_tokens={})


async def answers(executor: StepExecutor) -> tuple[list[list[int]], int, int]:
    """The tokens of every request, and how many drafts were proposed and correct."""
    engine = Engine(executor, cast("Tokenizer", Letters()), max_running_requests=RUNNING)
    engine.start(lambda: None)

    async def one(seed: int) -> tuple[list[int], int, int]:
        updates = []
        async with engine.stream(request(seed)) as stream:
            while not updates or updates[-1].finish is None:
                updates += await stream.take()
        drafts = updates[-1].speculation
        counts = (drafts.proposed_drafts, drafts.correct_drafts) if drafts else (0, 0)
        return [token for update in updates for token in update.tokens], *counts

    everyone = await asyncio.gather(*(one(seed) for seed in range(REQUESTS)))
    engine.shut_down()
    engine.join(10)
    return [tokens for tokens, _, _ in everyone], sum(p for _, p, _ in everyone), sum(c for _, _, c in everyone)


@pytest.mark.parametrize("steps", [0, 2], ids=["plain", "nextn"])
def test_the_engine_samples_from_the_model(build: Any, exact: np.ndarray, steps: int) -> None:
    tokens, proposed, correct = asyncio.run(answers(build(num_steps=steps, max_requests=RUNNING)))
    assert p_value(count(tokens, VOCAB, LENGTH), exact) > SUSPICIOUS
    if steps:
        assert 0.05 * REQUESTS < correct < 0.5 * proposed, "both outcomes should be common"


@pytest.mark.parametrize("acceptance", ["classic", pytest.param("block", marks=pytest.mark.slow)])
def test_blocks_of_sampled_drafts_leave_the_model_s_distribution(
    build: Any, exact: np.ndarray, write_draft: WriteDraft, acceptance: str
) -> None:
    path = write_draft(vocab_size=VOCAB, mask_token_id=7, target_layer_ids=[0], block_size=2, markov_head_type="gated")
    draft = DraftSettings(path=path, acceptance=acceptance)
    tokens, proposed, correct = asyncio.run(answers(build(draft=draft, max_requests=RUNNING)))
    assert p_value(count(tokens, VOCAB, LENGTH), exact) > SUSPICIOUS
    assert 0.2 * proposed < correct < 0.8 * proposed, "both outcomes should be common"


@pytest.mark.parametrize("acceptance", [pytest.param("classic", marks=pytest.mark.slow), "block"])
def test_the_engine_samples_from_the_model_with_planned_blocks(
    build: Any, exact: np.ndarray, write_draft: WriteDraft, acceptance: str
) -> None:
    """DSpark with sampled drafts, scheduled and packed; the planner's cost makes it choose all lengths."""
    path = write_draft(vocab_size=VOCAB, mask_token_id=7, target_layer_ids=[0], block_size=3)
    draft = DraftSettings(path=path, acceptance=acceptance, confidence=True)
    executor = build(draft=draft, max_requests=RUNNING)
    cost = AdditiveTable(1.0, Curve((1,), (0.0,)), Curve((1, 4 * RUNNING), (0.0, 1.5)))
    executor.schedule = Planned(temperatures=(1.0,) * 3, planner=CausalPlanner(cost), packed=True)
    tokens, proposed, correct = asyncio.run(answers(executor))
    assert p_value(count(tokens, VOCAB, LENGTH), exact) > SUSPICIOUS
    assert 80 < correct < 0.8 * proposed, "both outcomes should be common"
    report = executor.speculation_report()
    assert 1.1 * report["verify_requests"] < report["verified_rows"] < 3.9 * report["verify_requests"]


def test_an_engine_that_accepts_too_much_is_caught(
    build: Any, exact: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wrong prefix in the real executor: one draft too many counts as accepted."""
    right = verification.correct_drafts

    def generous(drafts: Tensor, choices: Tensor) -> Tensor:
        return (right(drafts, choices) + 1).clamp(max=drafts.shape[1])

    monkeypatch.setattr(verification, "correct_drafts", generous)
    tokens, _, _ = asyncio.run(answers(build(num_steps=2, max_requests=RUNNING)))
    assert p_value(count(tokens, VOCAB, LENGTH), exact) < SUSPICIOUS / 1e4
