"""Generated data: reproducible, disjoint, in the forms the clients read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from experiments import workloads
from experiments.errors import ConfigError
from experiments.spec import CellSpec, TaskSpec
from experiments.tasks.gsm8k import answer_value

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def cell(make_cell: Callable[..., CellSpec]) -> CellSpec:
    cell = make_cell(task=TaskSpec(name="gsm8k", num_questions=4, num_shots=2))
    return replace(cell, workload=replace(cell.workload, num_prompts=3, warmup_prompts=2, num_shots=2))


def prompts(data: workloads.Data) -> list[str]:
    return [row["conversations"][0]["value"] for row in json.loads(data.dataset.read_text())]


def test_equal_settings_give_equal_files(cell: CellSpec, tmp_path: Path) -> None:
    one, two = workloads.prepare(cell, tmp_path / "a"), workloads.prepare(cell, tmp_path / "b")
    assert one.dataset.name == two.dataset.name
    assert (one.dataset_sha256, one.task_sha256, one.warmup) == (two.dataset_sha256, two.task_sha256, two.warmup)


def test_another_seed_gives_other_prompts(cell: CellSpec, tmp_path: Path) -> None:
    other = replace(cell, workload=replace(cell.workload, seed=99))
    assert workloads.prepare(cell, tmp_path).dataset != workloads.prepare(other, tmp_path).dataset


def test_prompts_are_few_shot_and_share_nothing(cell: CellSpec, tmp_path: Path) -> None:
    data = workloads.prepare(cell, tmp_path)
    texts = [*prompts(data), *data.warmup]
    assert len(set(texts)) == 5
    assert all(text.count("Question: ") == 3 and text.endswith("\nAnswer:") for text in texts)
    questions = [line for text in texts for line in text.splitlines() if line.startswith("Question: ")]
    assert len(set(questions)) == len(questions) == 15


def test_conversations_have_a_worked_answer_as_second_turn(cell: CellSpec, tmp_path: Path) -> None:
    rows = json.loads(workloads.prepare(cell, tmp_path).dataset.read_text())
    assert all(answer_value(row["conversations"][1]["value"]) is not None for row in rows)


def test_a_file_of_yours_is_measured_as_it_is_and_warmed_up_with_other_prompts(cell: CellSpec, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    turns = [{"conversations": [{"value": f"p{i}"}, {"value": "a"}]} for i in range(3)]
    path.write_text(json.dumps(turns))
    mine = replace(cell, workload=replace(cell.workload, dataset_path=str(path)))
    data = workloads.prepare(mine, tmp_path)
    assert data.dataset == path
    assert len(data.warmup) == 2
    assert not set(data.warmup) & set(prompts(data))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not json", "not a JSON list"),
        ('["text"]', "not a JSON list"),
        ('[{"conversations": null}]', "not a JSON list"),
        ('[{"conversations": [{"from": "human"}, {"value": "a"}]}]', "not a JSON list"),
        ('[{"conversations": [{"value": "only one turn"}]}]', "has 0 conversations of two turns"),
    ],
)
def test_a_file_that_does_not_suffice(cell: CellSpec, tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        workloads.prepare(replace(cell, workload=replace(cell.workload, dataset_path=str(path))), tmp_path)


def test_what_is_no_text_file_is_a_configuration_error(cell: CellSpec, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_bytes(b"\xff\xfe")
    for path in (tmp_path, tmp_path / "mine.json"):
        with pytest.raises(ConfigError, match="not a JSON list"):
            workloads.prepare(replace(cell, workload=replace(cell.workload, dataset_path=str(path))), tmp_path)


def test_a_task_without_enough_rows_says_how_many_there_are(cell: CellSpec, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "q", "answer": "1"}\n' * 5)
    task = replace(cell.task, data_path=str(path))
    with pytest.raises(ConfigError, match=r"task\.num_questions: .* has 5 rows; 2 examples come first"):
        workloads.prepare(replace(cell, task=task), tmp_path)


class Client:
    def __init__(self) -> None:
        self.asked: list[str] = []

    def generate(self, *, text: str, **_: object) -> object:
        self.asked.append(text)

        class Answer:
            prompt_tokens = len(text)

        return Answer


def test_warm_up_reaches_the_measured_length() -> None:
    client = Client()
    workloads.warm_up(client, ("abcd", "x" * 200), 100)  # type: ignore[arg-type]
    assert [len(text) for text in client.asked] == [4, 100, 200]


def task_file(path: Path, count: int, word: str) -> str:
    path.write_text(
        "".join(json.dumps({"question": f"{word}{i}?", "answer": f"#### {i}"}) + "\n" for i in range(count))
    )
    return str(path)


def asked(data: workloads.Data) -> list[str]:
    return [row.question for row in data.task_rows]


def test_examples_from_another_file_leave_every_row_to_be_asked(cell: CellSpec, tmp_path: Path) -> None:
    train, test = (task_file(tmp_path / f"{word}.jsonl", 4, word) for word in ("train", "test"))
    task = replace(cell.task, data_path=test, shots_path=train)
    data = workloads.prepare(replace(cell, task=task), tmp_path / "data")
    assert asked(data) == ["train0?", "train1?", "test0?", "test1?", "test2?", "test3?"]
    assert str(data.task_file) == test
    own = workloads.prepare(replace(cell, task=replace(task, num_questions=2, shots_path=None)), tmp_path / "data")
    assert asked(own) == ["test0?", "test1?", "test2?", "test3?"]
    assert own.task_sha256 != data.task_sha256
    same = workloads.prepare(replace(cell, task=replace(task, shots_path=test)), tmp_path / "data")
    assert asked(same) == ["test0?", "test1?", "test0?", "test1?", "test2?", "test3?"]


def test_too_few_examples_or_questions_say_where(cell: CellSpec, tmp_path: Path) -> None:
    train, test = task_file(tmp_path / "train.jsonl", 1, "train"), task_file(tmp_path / "test.jsonl", 4, "test")
    with pytest.raises(ConfigError, match=r"task\.num_shots: .*train\.jsonl has 1 rows"):
        workloads.prepare(replace(cell, task=replace(cell.task, data_path=test, shots_path=train)), tmp_path)
    with pytest.raises(ConfigError, match=r"task\.num_questions: .*train\.jsonl has 1 rows; 0 examples come first"):
        workloads.prepare(replace(cell, task=replace(cell.task, data_path=train, shots_path=test)), tmp_path)
