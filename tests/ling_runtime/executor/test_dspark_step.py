"""DSpark in the executor: whatever the draft says, the tokens are those of decoding one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from ling_runtime.config import ConfigError
from ling_runtime.executor.draft import DraftSettings
from ling_runtime.executor.interface import GREEDY
from tests.ling_runtime.executor.driving import advance, generate, prompt_of, start, warm
from tests.ling_runtime.executor.oracle import plant

if TYPE_CHECKING:
    from ling_runtime.executor.interface import RowSampling
    from ling_runtime.executor.step import StepExecutor
    from tests.ling_runtime.conftest import WriteDraft
    from tests.ling_runtime.executor.driving import Build, Stream

pytestmark = pytest.mark.whole

TOKENS = 32
VARIANTS: dict[str, dict[str, Any]] = {
    "8": {},
    "16": {"block_size": 16},
    "gated": {"markov_head_type": "gated"},
    "rnn-causal": {"markov_head_type": "rnn", "is_causal": True},
    "past-the-anchor": {"sample_from_anchor": False},
    "no-confidence": {"enable_confidence_head": False},
    "mla": {
        "attention_type": "mla",
        "kv_lora_rank": 24,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
    },
}


@pytest.fixture
def dspark(build: Build, write_draft: WriteDraft) -> Build:
    """Executors with a draft; settings of both, those of the draft by prefix."""

    def make(**settings: Any) -> StepExecutor:
        wished = {key.removeprefix("draft_"): settings.pop(key) for key in list(settings) if key.startswith("draft_")}
        path = wished.pop("path", None) or write_draft()
        return build(draft=DraftSettings(path=path, **wished), **settings)

    return make


@pytest.mark.parametrize(
    ("variant", "dtype"), [*((name, "float32") for name in VARIANTS), ("8", "bfloat16"), ("mla", "bfloat16")]
)
def test_greedy_output_is_that_of_no_speculation(
    build: Build, dspark: Build, write_draft: WriteDraft, variant: str, dtype: str
) -> None:
    path = write_draft(**VARIANTS[variant])
    for seed, length in ((1, 1), (3, 77)):
        plain = generate(build(dtype=dtype), prompt_of(seed, length), TOKENS)
        ours = generate(dspark(draft_path=path, dtype=dtype), prompt_of(seed, length), TOKENS)
        assert (ours.tokens, ours.logprobs) == (plain.tokens, plain.logprobs)


@pytest.mark.parametrize("right", [0, 1, 5, 8])
def test_any_accepted_prefix_leaves_the_same_tokens(build: Build, dspark: Build, right: int) -> None:
    prompt = prompt_of(2, 30)
    plain = generate(build(), prompt, TOKENS)
    executor = dspark()
    stream = start(executor, prompt, TOKENS)
    plant(executor, {stream.slot: prompt + plain.tokens}, right)
    while len(stream.tokens) + right + 1 <= TOKENS:
        before = len(stream.tokens)
        advance(executor, [stream])
        assert len(stream.tokens) - before == right + 1
    assert stream.tokens == plain.tokens[: len(stream.tokens)]
    report = executor.speculation_report()
    assert report is not None
    assert report["committed_tokens"] == stream.steps * (right + 1)
    assert report["verified_rows"] == stream.steps * 9
    assert report["accept_by_position"] == [1.0] * right + [0.0] * (8 - right)


def test_the_draft_cache_after_many_steps_is_that_of_a_fresh_prefill(dspark: Build) -> None:
    executor = dspark()
    stream = start(executor, prompt_of(3, 20), 60)
    while len(stream.tokens) < 40:
        advance(executor, [stream])
    length = executor._slots[stream.slot].length
    fresh = start(executor, prompt_of(3, 20) + stream.tokens[:-1], 20)
    assert executor._slots[fresh.slot].length == length
    pool = executor._proposer._pool  # type: ignore[union-attr]
    decoded, again = (pool.context(s.slot, length)[:length] for s in (stream, fresh))
    assert decoded.any()
    assert torch.equal(decoded, again)


def joined(executor: StepExecutor, sampling: list[RowSampling]) -> list[Stream]:
    """Requests that join one after the other and leave when they are done, the first of them soon."""
    streams: list[Stream] = []
    for i, one in enumerate(sampling):
        streams.append(start(executor, prompt_of(i, 5 + 11 * i), TOKENS, one))
        advance(executor, streams)
    while running := [s for s in streams if len(s.tokens) < TOKENS]:
        advance(executor, running)
    return streams


@pytest.mark.parametrize(("block", "acceptance"), [(8, "block"), (16, "classic")])
def test_eight_requests_that_come_and_go_do_not_see_each_other(
    dspark: Build, write_draft: WriteDraft, block: int, acceptance: str
) -> None:
    path = write_draft(block_size=block)
    sampling = [warm(i) if i % 2 else GREEDY for i in range(8)]
    alone = [
        generate(dspark(draft_path=path, draft_acceptance=acceptance), prompt_of(i, 5 + 11 * i), TOKENS, one)
        for i, one in enumerate(sampling)
    ]
    together = joined(dspark(draft_path=path, draft_acceptance=acceptance), sampling)
    for stream, one in zip(together, alone, strict=True):
        assert stream.tokens[:TOKENS] == one.tokens
        assert stream.logprobs[:TOKENS] == one.logprobs
        assert stream.steps == one.steps


@pytest.mark.parametrize("chunk", [1, 13, 64])
def test_chunks_of_the_prompt_change_nothing(dspark: Build, write_draft: WriteDraft, chunk: int) -> None:
    path, prompt = write_draft(), prompt_of(4, 131)
    for sampling in (GREEDY, warm(1)):
        whole = generate(dspark(draft_path=path, chunk=131), prompt, TOKENS, sampling)
        parts = generate(dspark(draft_path=path, chunk=chunk), prompt, TOKENS, sampling)
        assert (parts.tokens, parts.logprobs, parts.steps) == (whole.tokens, whole.logprobs, whole.steps)


def test_fewer_drafts_than_trained(build: Build, dspark: Build, write_draft: WriteDraft) -> None:
    executor = dspark(draft_path=write_draft(block_size=16), draft_block_size=3)
    assert executor.window == 4
    plain = generate(build(), prompt_of(1, 20), TOKENS)
    assert generate(executor, prompt_of(1, 20), TOKENS).tokens == plain.tokens


def test_greedy_drafts_keep_the_tokens_of_a_seeded_sample(build: Build, dspark: Build) -> None:
    plain = generate(build(), prompt_of(1, 20), TOKENS, warm(5))
    ours = generate(dspark(draft_greedy=True), prompt_of(1, 20), TOKENS, warm(5))
    assert (ours.tokens, ours.logprobs) == (plain.tokens, plain.logprobs)


def test_seeds_decide_sampled_tokens(dspark: Build, write_draft: WriteDraft) -> None:
    path = write_draft()
    runs = [generate(dspark(draft_path=path), prompt_of(1, 20), TOKENS, warm(seed)).tokens for seed in (5, 5, 6)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_the_report_shows_that_the_draft_ran(dspark: Build) -> None:
    executor = dspark()
    stream = generate(executor, prompt_of(1, 20), 10)
    calls = {row["operator"]: row["calls"] for row in executor.kernel_report()}
    assert calls["draft_choice"] == 8 * stream.steps
    assert calls["draft_attention"] == 2 * stream.steps
    executor.reset_counters()
    report = executor.speculation_report()
    assert report is not None
    assert report["verify_requests"] == report["verified_rows"] == 0


@pytest.mark.parametrize(
    ("draft", "settings", "named"),
    [
        ({}, {"draft_block_size": 9}, "speculative_dspark_block_size=9: trained for 8"),
        ({}, {"draft_block_size": 0}, "speculative_dspark_block_size=0"),
        ({"max_position_embeddings": 100}, {}, "context_length=1024: allowed up to the draft's 100"),
        ({"hidden_size": 32}, {}, "hidden_size=32"),
    ],
)
def test_a_draft_that_does_not_fit_is_named(
    dspark: Build, write_draft: WriteDraft, draft: dict[str, Any], settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        dspark(draft_path=write_draft(**draft), **settings)
