"""Every story must be right, legal and reproducible: its answer is recomputed here from the text alone."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from statistics import mean
from typing import TYPE_CHECKING

import pytest
from tokenizers import Tokenizer

from ling_runtime.training.problems.generate import WITHHELD_SHARE, Problem, generate
from ling_runtime.training.problems.templates import WORLDS, every_template

if TYPE_CHECKING:
    from pathlib import Path

LINE = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")
COMPUTE = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__, "/": int.__floordiv__}


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    return [*generate(11, 3000), *generate(11, 3000, "heldout")]


def steps(problem: Problem) -> list[tuple[int, str, int, int]]:
    found = (LINE.search(line) for line in problem.answer.splitlines()[:-1])
    return [(int(m[1]), m[2], int(m[3]), int(m[4])) for m in found if m]


def test_every_line_computes_and_the_last_is_the_answer(problems: list[Problem]) -> None:
    for problem in problems:
        lines = steps(problem)
        assert len(lines) == problem.answer.count("\n") == problem.template.step_count
        assert all(COMPUTE[op](left, right) == result for left, op, right, result in lines)
        assert problem.answer.splitlines()[-1] == f"#### {lines[-1][-1]}" == f"#### {problem.value}"


def test_arithmetic_stays_in_grade_school(problems: list[Problem]) -> None:
    for problem in problems:
        assert 2 <= problem.template.step_count <= 5
        for left, op, right, result in steps(problem):
            assert 0 <= result <= 999
            assert op != "*" or min(left, right) <= 12
            assert op != "/" or (right <= 12 and left % right == 0)


def test_all_sizes_and_operations_occur(problems: list[Problem]) -> None:
    lines = [line for problem in problems for line in steps(problem)]
    for op in COMPUTE:
        results = [result for _, sign, _, result in lines if sign == op]
        assert len(results) > 1000
        assert max(results) > (900 if op != "/" else 300)


def test_numbers_of_the_answer_come_from_the_question(problems: list[Problem]) -> None:
    for problem in problems:
        known = set(re.findall(r"\d+", problem.question)) | {"2"}  # twice and half are told in words
        for left, _, right, result in steps(problem):
            assert {str(left), str(right)} <= known
            known.add(str(result))


def test_no_placeholder_is_left(problems: list[Problem]) -> None:
    assert not any(set("{}") & set(problem.question + problem.answer) for problem in problems)


def test_splits_share_no_withheld_order(problems: list[Problem]) -> None:
    train, heldout = problems[:3000], problems[3000:]
    withheld = {p.template.name for p in heldout if p.template.withheld}
    assert not withheld & {p.template.name for p in train}
    assert mean(p.template.withheld for p in heldout) == pytest.approx(WITHHELD_SHARE, abs=0.03)
    assert not {p.question for p in train} & {p.question for p in heldout}


def test_templates_are_many_in_every_world() -> None:
    counts = {world.name: [0, 0] for world in WORLDS}
    for template in every_template():
        counts[template.world.name][template.withheld] += 1
    assert all(seen >= 1000 and withheld >= 100 for seen, withheld in counts.values())


def test_answers_have_sixty_tokens_on_average(problems: list[Problem], tiny_directory: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_directory / "tokenizer.json"))
    assert 60 <= mean(len(tokenizer.encode(f" {problem.answer}").ids) for problem in problems[:1000]) <= 80


@pytest.mark.process
def test_command_writes_the_same_bytes_for_a_seed(tmp_path: Path) -> None:
    """The digest pins the text the shipped weights were trained on: a change of wording must retrain them."""
    out = tmp_path / "problems.jsonl"
    command = [sys.executable, "-m", "ling_runtime.training.problems", "--seed", "3", "--num", "50", "--out", str(out)]
    subprocess.run([*command, "--split", "heldout"], check=True)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [set(row) for row in rows] == [{"question", "answer"}] * 50
    assert hashlib.sha256(out.read_bytes()).hexdigest()[:16] == "9d5d836b076c2f33"
