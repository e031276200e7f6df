"""One window for everything: speculation, chunking, batching and neighbours change no bit of the output."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
import torch

from ling_runtime.config import ConfigError
from ling_runtime.executor.build import ExecutorSettings, build_executor
from ling_runtime.executor.interface import GREEDY, Admission
from ling_runtime.memory.window import Window
from tests.ling_runtime.executor.driving import Stream, advance, generate, prompt_of, start, warm

if TYPE_CHECKING:
    from ling_runtime.config import ModelConfig
    from ling_runtime.executor.interface import RowSampling
    from ling_runtime.executor.step import StepExecutor
    from tests.ling_runtime.executor.driving import Build

pytestmark = pytest.mark.whole

TOKENS = 48


PROMPTS = (prompt_of(1, 1), prompt_of(2, 16), prompt_of(3, 77))


@pytest.fixture(scope="module")
def plain_answers(small_config: ModelConfig, small_tensors: dict[str, torch.Tensor]) -> dict[RowSampling, list[Stream]]:
    """What decoding without drafts says to each prompt."""
    executor = build_executor(small_config, small_tensors, ExecutorSettings())
    return {one: [generate(executor, prompt, TOKENS, one) for prompt in PROMPTS] for one in (GREEDY, warm(7))}


@pytest.mark.parametrize("sampling", [GREEDY, warm(7)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("steps", [1, 2, 3, 5, 16])
def test_speculation_changes_no_token_and_no_logprob(
    build: Build, plain_answers: dict[RowSampling, list[Stream]], steps: int, sampling: RowSampling
) -> None:
    executor = build(num_steps=steps)
    for prompt, plain in zip(PROMPTS, plain_answers[sampling], strict=True):
        speculative = generate(executor, prompt, TOKENS, sampling)
        assert speculative.tokens == plain.tokens
        assert speculative.logprobs == plain.logprobs


def test_chunk_size_of_prefill_changes_nothing(build: Build) -> None:
    prompt = prompt_of(4, 131)
    whole = generate(build(num_steps=3, chunk=131), prompt, 40)
    for chunk in (1, 5, 16, 64, 1000):
        parts = generate(build(num_steps=3, chunk=chunk), prompt, 40)
        assert (parts.tokens, parts.logprobs, parts.steps) == (whole.tokens, whole.logprobs, whole.steps), chunk


def test_prefill_gives_the_bits_of_decoding(build: Build) -> None:
    """A prompt that already holds the generated tokens continues with the same bits."""
    executor, prompt = build(), prompt_of(5, 23)
    long = generate(executor, prompt, 60)
    rest = generate(executor, prompt + long.tokens[:30], 30)
    assert rest.tokens == long.tokens[30:]
    assert rest.logprobs == long.logprobs[30:]


@pytest.mark.parametrize("steps", [0, 3])
def test_neighbours_change_nothing(build: Build, steps: int) -> None:
    prompts = [prompt_of(i, 5 + 11 * i) for i in range(5)]
    alone = [generate(build(num_steps=steps), p, TOKENS, warm(i) if i % 2 else GREEDY) for i, p in enumerate(prompts)]
    executor = build(num_steps=steps)
    streams = []
    for i, prompt in enumerate(prompts):
        streams.append(start(executor, prompt, TOKENS, warm(i) if i % 2 else GREEDY))
        advance(executor, streams)
    while any(len(s.tokens) < TOKENS for s in streams):
        running = [s for s in streams if len(s.tokens) < TOKENS]
        advance(executor, running)
    for stream, one in zip(streams, alone, strict=True):
        assert stream.tokens[:TOKENS] == one.tokens
        assert stream.logprobs[:TOKENS] == one.logprobs


def test_a_used_slot_starts_clean(build: Build) -> None:
    executor = build(num_steps=3, max_requests=1)
    first = generate(executor, prompt_of(1, 40), TOKENS)
    generate(executor, prompt_of(2, 90), TOKENS, warm(3))
    again = generate(executor, prompt_of(1, 40), TOKENS)
    assert (again.tokens, again.logprobs, again.steps) == (first.tokens, first.logprobs, first.steps)


@pytest.mark.parametrize("start_length", [16, 27, 31])
@pytest.mark.parametrize("accepted", [1, 3, 6])
def test_two_rejected_tails_leave_equal_state(build: Build, start_length: int, accepted: int) -> None:
    """Same accepted prefix, different rejected tails: byte-identical state, also across a chunk boundary."""
    snapshots = []
    for tail in (11, 77):
        executor = build(max_requests=1)
        stream = start(executor, prompt_of(9, start_length), 40)
        window = Window(slots=(stream.slot,), starts=(start_length,), rows=6)
        ids = torch.tensor([5, 6, 7, 8, 9, 10][:accepted] + [tail] * (6 - accepted))
        executor._model(ids, executor._caches.begin(window))
        executor._caches.recurrent.commit(window, torch.tensor([accepted]))
        snapshots.append(executor._caches.recurrent.snapshot(stream.slot))
    for one, other in zip(*snapshots, strict=True):
        assert torch.equal(one, other)
    conv, ring, state = snapshots[0]
    assert conv.any()
    assert state.any()
    assert bool(ring.any()) == bool((start_length + accepted) % 16), "the open chunk is empty exactly at a boundary"


def draft_rows(executor: StepExecutor, slot: int, length: int) -> torch.Tensor:
    table = executor._caches.latent._tables[slot]
    return executor._caches.latent.rows[-1, table].flatten(0, 1)[:length].clone()


def test_extend_keeps_the_draft_cache_true(build: Build) -> None:
    """After any number of steps the draft cache equals a fresh draft prefill over the same tokens."""
    executor = build(num_steps=5)
    stream = start(executor, prompt_of(3, 20), 60)
    while len(stream.tokens) < 40:
        advance(executor, [stream])
    tokens, length = stream.tokens, executor._slots[stream.slot].length
    decoded = draft_rows(executor, stream.slot, length)
    fresh = start(executor, prompt_of(3, 20) + tokens[:-1], 20)
    assert fresh.tokens[0] == tokens[-1]
    assert executor._slots[fresh.slot].length == length
    assert torch.equal(draft_rows(executor, fresh.slot, length), decoded)


def test_garbage_past_the_committed_length_is_never_read(build: Build) -> None:
    plain = generate(build(num_steps=3), prompt_of(6, 30), 50)
    executor = build(num_steps=3)
    stream = start(executor, prompt_of(6, 30), 50)
    while len(stream.tokens) < 50:
        length = executor._slots[stream.slot].length
        table = executor._caches.latent._tables[stream.slot]
        rows = executor._caches.latent.rows.flatten(1, 2)
        for position in range(length, len(table) * 64):
            rows[:, table[position // 64] * 64 + position % 64] = 1e6
        advance(executor, [stream])
    assert stream.tokens[:50] == plain.tokens


def test_admission_counts_slots_and_pages(build: Build) -> None:
    executor = build(max_requests=2, max_total_tokens=1100, num_steps=3)
    assert executor.can_admit(900, 100)
    slot = start(executor, prompt_of(1, 900), 100).slot
    assert not executor.can_admit(100, 60), "pages"
    assert executor.can_admit(10, 10)
    other = start(executor, prompt_of(1, 10), 10).slot
    assert not executor.can_admit(1, 1), "slots"
    executor.release(slot)
    executor.release(other)
    assert executor._caches.latent.free_pages == -(-1100 // 64)
    assert executor._caches.free_slots == 2


def test_prompt_logprobs_are_those_of_decoding(build: Build) -> None:
    prompt = prompt_of(8, 33)
    out = generate(build(), prompt, 30)
    executor = build(chunk=13)
    slot = executor.admit(Admission(prompt + out.tokens, 1, logprobs=2, prompt_logprobs_from=len(prompt)))
    scored = []
    while not (step := executor.prefill(slot)).done:
        scored += step.prompt_logprobs or ()
    scored += step.prompt_logprobs or ()
    assert [s.token for s in scored] == out.tokens
    assert [s.logprob for s in scored] == out.logprobs
    assert all(s.top[0][1] == s.token for s in scored), "greedy tokens are the best at their position"


def test_kernels_report_what_ran(build: Build) -> None:
    executor = build(kernels={"moe_align": "pair_axis", "lm_head": "bf16"})
    generate(executor, prompt_of(1, 5), 3)
    report = {row["operator"]: row for row in executor.kernel_report()}
    blocks = {"draft_attention", "draft_block", "draft_chain", "draft_choice", "draft_inject"}
    elsewhere = blocks | {"greedy_head", "prompt_router", "shard_head"}
    assert {operator for operator, row in report.items() if not row["calls"]} == elsewhere
    assert report["moe_align"]["variant"] == "pair_axis"
    assert report["lm_head"]["numerics"] == "rounding"
    executor.reset_counters()
    assert not any(row["calls"] for row in executor.kernel_report())


def test_bitwise_variants_change_nothing(build: Build) -> None:
    plain = generate(build(num_steps=3), prompt_of(2, 30), TOKENS)
    variant = generate(build(num_steps=3, kernels={"moe_align": "pair_axis"}), prompt_of(2, 30), TOKENS)
    assert (variant.tokens, variant.logprobs, variant.steps) == (plain.tokens, plain.logprobs, plain.steps)


def test_bfloat16_is_row_invariant_too(build: Build) -> None:
    plain = generate(build(dtype="bfloat16"), prompt_of(2, 30), 40)
    speculative = generate(build(dtype="bfloat16", num_steps=5), prompt_of(2, 30), 40)
    assert (speculative.tokens, speculative.logprobs) == (plain.tokens, plain.logprobs)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"context_length": 5000}, "context_length=5000"),
        ({"dtype": "int8"}, "dtype=int8"),
        ({"kernels": {"router": "fp4"}}, r"kernels\.router=fp4"),
    ],
)
def test_settings_that_do_not_fit_are_named(build: Build, settings: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        build(**settings)


def test_nextn_needs_its_layer(small_config: ModelConfig, small_tensors: dict[str, torch.Tensor]) -> None:
    without = dataclasses.replace(small_config, num_nextn_predict_layers=0)
    with pytest.raises(ConfigError, match="num_nextn_predict_layers=0"):
        build_executor(without, small_tensors, ExecutorSettings(num_steps=3))
