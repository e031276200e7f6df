"""The gate prompts: enough of them, different, the same every time, and from the workload where it has data."""

from __future__ import annotations

import json
import re

import pytest

from gates.prompts import WORKED, builtin, canary_pool, gate_prompts, prompts_hash


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


def test_too_few_prompts_is_an_error_that_names_the_key():
    with pytest.raises(ValueError, match=r"gate\.parity_prompts=117: there are 116"):
        gate_prompts(117)


def test_every_way_to_end_is_asked_for():
    prompts = list(builtin())
    assert {(prompt.ignore_eos, bool(prompt.stop)) for prompt in prompts} >= {
        (True, False),
        (False, False),
        (True, True),
    }


def test_few_shot_prompts_hold_five_examples_and_another_question():
    prompt = next(builtin())
    assert prompt.text.count("Answer:") == 6
    assert prompt.text.endswith("\nAnswer:")
    questions = prompt.text.split("Question: ")[1:]
    assert len({question.split("\n")[0] for question in questions}) == 6


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
