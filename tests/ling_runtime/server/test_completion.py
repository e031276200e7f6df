"""The rules that end an answer, and that they do not depend on how many tokens a step delivers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ling_runtime.completion import Completion
from ling_runtime.executor.interface import PrefillOutput, StepOutput, TokenLogprob
from ling_runtime.request import Abort, Length, Request, Stop
from ling_runtime.sampling import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ling_runtime.request import Update
    from ling_runtime.tokenizer import Tokenizer

WINDOW = 7
EOS = 0


def run(tokenizer: Tokenizer, tokens: Sequence[int], stride: int, **wishes: Any) -> list[Update]:
    """Feed the first token as prefill and the rest in steps of `stride`, until the completion ends."""
    stop_tokens: dict[int, int | str] = {EOS: EOS, **wishes.pop("stop_tokens", {})}
    max_new_tokens = wishes.pop("max_new_tokens", 100)
    request = Request(
        id="r",
        prompt=(5, 6),
        max_new_tokens=max_new_tokens,
        sampling=SamplingParams(**wishes),
        seed=1,
        stop_tokens=stop_tokens,
    )
    completion = Completion(request, tokenizer, WINDOW, lambda _: None)
    first = completion.prefilled(PrefillOutput(True, tokens[0], None, None))
    assert first is not None
    updates = [first]
    for start in range(1, len(tokens), stride):
        if completion.finished:
            break
        step = tuple(tokens[start : start + stride])
        updates.append(completion.decoded(StepOutput(step, None, len(step) - 1, WINDOW - 1)))
    return updates


def text_of(updates: Sequence[Update]) -> str:
    return "".join(update.text for update in updates)


def tokens_of(updates: Sequence[Update]) -> list[int]:
    return [token for update in updates for token in update.tokens]


@pytest.mark.parametrize("stride", [1, 2, 3, 5, 7])
def test_a_stop_string_across_tokens_trims_text_and_keeps_its_tokens(tokenizer: Tokenizer, stride: int) -> None:
    tokens = tokenizer.encode(" 12 apples.\n#### 12\n\nQuestion: next")
    updates = run(tokenizer, tokens, stride, stop=("#### 1",))
    assert text_of(updates) == " 12 apples.\n"
    assert updates[-1].finish == Stop("#### 1")
    assert tokens_of(updates) == tokens[: len(tokens_of(updates))]
    assert tokenizer.token_bytes(tokens_of(updates)[-1]).endswith((b"1", b"12"))


@pytest.mark.parametrize("stride", [1, 2, 7])
def test_eos_ends_before_a_later_stop_string_of_the_same_step(tokenizer: Tokenizer, stride: int) -> None:
    """The answer of a window of one: SGLang would report the stop string for a wide window."""
    tokens = [*tokenizer.encode("one"), EOS, *tokenizer.encode("Question")]
    updates = run(tokenizer, tokens, stride, stop=("Question",))
    assert text_of(updates) == "one"
    assert updates[-1].finish == Stop(EOS)
    assert tokens_of(updates) == [*tokenizer.encode("one"), EOS]


@pytest.mark.parametrize("stride", [1, 4, 7])
def test_length_drops_what_the_last_step_gave_too_much(tokenizer: Tokenizer, stride: int) -> None:
    tokens = tokenizer.encode("How many apples are there?")
    updates = run(tokenizer, tokens, stride, max_new_tokens=6)
    assert tokens_of(updates) == tokens[:6]
    assert updates[-1].finish == Length(6)
    assert updates[-1].finish.to_json() == {"type": "length", "length": 6}


def test_a_stop_at_the_last_allowed_token_is_a_stop(tokenizer: Tokenizer) -> None:
    updates = run(tokenizer, [*tokenizer.encode("ab"), EOS], 1, max_new_tokens=len(tokenizer.encode("ab")) + 1)
    assert updates[-1].finish == Stop(EOS)


def test_held_text_comes_out_when_the_length_ends_the_answer(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("a Quest")
    updates = run(tokenizer, tokens, 1, stop=("Question",), max_new_tokens=len(tokens))
    assert text_of(updates) == "a Quest"


def test_special_tokens_have_no_text_unless_asked_for(tokenizer: Tokenizer) -> None:
    tokens = [*tokenizer.encode("a"), 3, *tokenizer.encode("b")]
    assert text_of(run(tokenizer, tokens, 1, max_new_tokens=3)) == "ab"
    assert text_of(run(tokenizer, tokens, 1, max_new_tokens=3, skip_special_tokens=False)) == "a<|separator|>b"


def test_a_special_token_can_be_named_as_stop_string(tokenizer: Tokenizer) -> None:
    tokens = [*tokenizer.encode("a"), 3, *tokenizer.encode("b")]
    updates = run(tokenizer, tokens, 1, stop=("<|separator|>",), stop_tokens={3: "<|separator|>"})
    assert text_of(updates) == "a"
    assert updates[-1].finish == Stop("<|separator|>")


def test_no_stop_trim_keeps_the_stop_token(tokenizer: Tokenizer) -> None:
    (word,) = tokenizer.encode(" apples")
    tokens = [*tokenizer.encode("12"), word]
    trimmed = run(tokenizer, tokens, 1, stop_tokens={word: word})
    kept = run(tokenizer, tokens, 1, stop_tokens={word: word}, no_stop_trim=True)
    assert (text_of(trimmed), text_of(kept)) == ("12", "12 apples")


def test_a_length_of_zero_scores_the_prompt_and_says_nothing(tokenizer: Tokenizer) -> None:
    updates = run(tokenizer, [9, 9], 1, max_new_tokens=0)
    assert updates[-1].finish == Length(0)
    assert tokens_of(updates) == []


def test_speculation_counts_steps_and_drafts(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("How many apples are there? There are many of them.")
    updates = run(tokenizer, tokens, 3, max_new_tokens=8)
    counts = updates[-1].speculation
    assert counts is not None
    assert counts.verify_steps == 3  # 1 + 3 + 3 + 1 of 3
    assert counts.correct_drafts == 6
    assert counts.proposed_drafts == 3 * (WINDOW - 1)
    assert counts.histogram == (0, 0, 3, 0, 0, 0, 0)
    assert all(update.speculation is None for update in updates[:-1])


def test_prompt_logprobs_of_all_chunks_come_with_the_first_update(tokenizer: Tokenizer) -> None:
    request = Request(
        id="r", prompt=(5, 6, 7), max_new_tokens=4, sampling=SamplingParams(), seed=1, stop_tokens={}, logprobs=0
    )
    completion = Completion(request, tokenizer, 1, lambda _: None)
    scored = [TokenLogprob(-0.5, 6, ()), TokenLogprob(-0.25, 7, ())]
    assert completion.prefilled(PrefillOutput(False, None, None, (scored[0],))) is None
    update = completion.prefilled(PrefillOutput(True, 9, TokenLogprob(-1.0, 9, ()), (scored[1],)))
    assert update is not None
    assert update.prompt_logprobs == tuple(scored)
    assert update.logprobs == (TokenLogprob(-1.0, 9, ()),)
    assert completion.decoded(StepOutput((9,), (TokenLogprob(-1.0, 9, ()),), 0, 0)).prompt_logprobs == ()


def test_an_abort_carries_its_reason(tokenizer: Tokenizer) -> None:
    request = Request(id="r", prompt=(5,), max_new_tokens=4, sampling=SamplingParams(), seed=1, stop_tokens={})
    completion = Completion(request, tokenizer, 1, lambda _: None)
    update = completion.abort("gone", 499)
    assert update.finish == Abort("gone", 499)
    assert completion.finished
