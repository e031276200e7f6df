"""The gate prompts: enough of them, different, the same every time, and from the workload where it has data."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from gates.prompts import WORKED, builtin, canary_pool, gate_prompts, prompts_hash
from ling_runtime.arguments import ServerConfig

TOKENIZER = Path(__file__).parents[2] / "ling_runtime/checkpoints/ling_tiny/tokenizer.json"


@pytest.fixture
def dataset(tmp_path):
    rows = [{"conversations": [{"value": "ask " * 2000 + f"number {i}"}, {"value": "answer"}]} for i in range(80)]
    path = tmp_path / "data.json"
    path.write_text(json.dumps(rows))
    return path


def test_builtin_and_local_prompts_take_turns(dataset):
    names = [prompt.name for prompt in gate_prompts(6, dataset)]
    assert names == ["few-shot-0", "data-0", "few-shot-1", "data-1", "text-0", "data-2"]


def test_a_hundred_prompts_are_all_different(dataset):
    for prompts in (gate_prompts(100), gate_prompts(100, dataset)):
        assert len({prompt.text for prompt in prompts}) == 100
        assert len({prompt.name for prompt in prompts}) == 100
        assert max(len(prompt.text) for prompt in prompts) <= 4000


def test_too_few_prompts_is_an_error_that_names_how_many_there_are():
    with pytest.raises(ValueError, match="117 is too many; allowed: 1 to 116"):
        gate_prompts(117)


def test_few_prompts_already_hold_a_whole_answer_and_one_that_ends_itself(dataset):
    for prompts in (gate_prompts(2), gate_prompts(4, dataset)):
        assert {(prompt.ignore_eos, bool(prompt.stop)) for prompt in prompts} == {(True, False), (False, True)}


@pytest.mark.parametrize(("index", "examples"), [(0, 8), (1, 5)])
def test_few_shot_prompts_ask_what_no_example_answers(index, examples):
    prompt = list(builtin())[index]
    assert prompt.text.count("Answer:") == examples + 1
    assert prompt.text.endswith("\nAnswer:")
    questions = prompt.text.split("Question: ")[1:]
    assert len({question.split("\n")[0] for question in questions}) == examples + 1


def test_the_first_prompt_fills_more_than_one_prefill_chunk():
    chunk = ServerConfig.chunked_prefill_size
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    assert len(tokenizer.encode(next(builtin()).text).ids) > chunk


def test_canaries_are_short_and_half_of_them_have_to_invent():
    pool = canary_pool()
    assert len({prompt.text for prompt in pool}) == len(pool) == 2 * len(WORKED)
    assert sum(prompt.text.endswith("Answer:") for prompt in pool) == len(WORKED)
    assert all(prompt.max_new_tokens for prompt in pool)


@pytest.mark.parametrize("worked", [answer for _, answer in WORKED])
def test_the_worked_answers_are_right(worked):
    sums = re.findall(r"(\d+(?: [-+*/] \d+)+) = (\d+)", worked)
    assert len(sums) == 2
    assert all(eval(term) == int(total) for term, total in sums)
    assert worked.endswith(f"#### {sums[-1][1]}")


def test_the_hash_sees_every_field():
    pool = canary_pool()
    assert prompts_hash(pool) == prompts_hash(canary_pool())
    assert prompts_hash(pool) != prompts_hash(pool[1:])
    assert prompts_hash(pool[:1]) != prompts_hash(gate_prompts(1))
