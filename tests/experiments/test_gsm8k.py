"""Prompt text, answer rule and rates of the grade-school task."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from experiments.clients.generate import Generation
from experiments.errors import ConfigError, MeasurementError
from experiments.spec import TaskSpec
from experiments.tasks import gsm8k
from experiments.tasks.gsm8k import Row

ROWS = [Row(f"q{i}", f"a{i}\n#### {i}") for i in range(6)]


def generation(text: str, finish_reason: str = "stop") -> Generation:
    return Generation(
        text=text,
        output_ids=(1, 2, 3),
        prompt_tokens=5,
        completion_tokens=3,
        finish_reason=finish_reason,
        matched=None,
        spec_verify_ct=None,
        ttft_s=None,
        latency_s=0.1,
        output_top_logprobs=None,
        input_top_logprobs=None,
        input_token_logprobs=None,
        output_token_logprobs=None,
    )


class Client:
    """Answers by question, and remembers what it was asked."""

    def __init__(self, answers: dict[str, Generation]) -> None:
        self.answers = answers
        self.asked: list[dict[str, object]] = []

    def generate(self, **call: object) -> Generation:
        self.asked.append(call)
        question = re.findall(r"Question: (.*)\nAnswer:", str(call["text"]))[-1]
        return self.answers[question]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("so 17 + 4 = 21.\n#### 21", 21),
        ("#### 1,234", 1234),
        ("it costs $3.50", 50),
        ("minus -7", 7),
        ("no number here", None),
        ("", None),
        ("agent 007", None),
        ("zero 0", 0),
        ("00", 0),
        ("9" * 5000, None),
    ],
)
def test_the_answer_is_the_last_integer(text: str, value: int | None) -> None:
    assert gsm8k.answer_value(text) == value


@pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang's client is not installed")
def test_the_rules_are_few_shot_gsm8k_s_own() -> None:
    """Against the installed source, so that an update there is noticed here."""
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    source = (Path(spec.submodule_search_locations[0]) / "test/few_shot_gsm8k.py").read_text()
    names = {"INVALID", "get_one_example", "get_few_shot_examples", "get_answer_value"}
    scope: dict[str, object] = {}
    body = source[source.index("INVALID = ") : source.index("def run_eval")]
    exec(compile("import ast, re\n" + body, "few_shot_gsm8k", "exec"), scope)
    assert names <= scope.keys()
    lines = [vars(row) for row in ROWS]
    examples = scope["get_few_shot_examples"](lines, 5)  # type: ignore[operator]
    asked = scope["get_one_example"](lines, 5, False)  # type: ignore[operator]
    assert gsm8k.few_shot(ROWS[:5]) + gsm8k.question(ROWS[5]) == examples + asked
    for text in ("x 1,234 y", "007", "none", "3.50", "1 2 3"):
        theirs = scope["get_answer_value"](text)  # type: ignore[operator]
        assert gsm8k.answer_value(text) == (None if theirs == scope["INVALID"] else theirs)
    for string in gsm8k.STOP:
        assert f'"{string}"' in source


def test_examples_come_first_and_are_not_scored() -> None:
    client = Client({"q2": generation("#### 2"), "q3": generation("#### 9"), "q4": generation("#### 4")})
    task = TaskSpec(name="gsm8k", num_questions=3, num_shots=2)
    steps: list[int] = []
    score, answers = gsm8k.run(client, ROWS, task, steps.append)  # type: ignore[arg-type]
    assert [answer.index for answer in answers] == [2, 3, 4]
    assert client.asked[0]["text"] == (
        "Question: q0\nAnswer: a0\n#### 0\n\nQuestion: q1\nAnswer: a1\n#### 1\n\nQuestion: q2\nAnswer:"
    )
    assert client.asked[0]["stop"] == ("Question", "Assistant:", "<|separator|>")
    assert (client.asked[0]["temperature"], client.asked[0]["max_new_tokens"]) == (0.0, 512)
    assert (score.correct, score.questions, score.accuracy) == (2, 3, pytest.approx(2 / 3))
    assert steps == [1, 1, 1]


def test_wrong_invalid_and_truncated_are_counted_apart() -> None:
    client = Client(
        {
            "q0": generation("#### 0"),
            "q1": generation("#### 7"),
            "q2": generation("nothing"),
            "q3": generation("nothing", "length"),
        }
    )
    score, answers = gsm8k.run(client, ROWS, TaskSpec(name="gsm8k", num_questions=4, num_shots=0), len_ignored)  # type: ignore[arg-type]
    assert (score.accuracy, score.invalid, score.stop_rate, score.truncation_rate) == (0.25, 0.5, 0.75, 0.25)
    assert [answer.predicted for answer in answers] == [0, 7, None, None]
    assert score.output_tok_s == pytest.approx(12 / score.latency_s)


def len_ignored(_: int) -> None:
    pass


def test_an_aborted_answer_is_no_wrong_answer() -> None:
    with pytest.raises(MeasurementError, match="question 3 ended with 'abort'"):
        gsm8k.mark(3, ROWS[3], generation("", "abort"))


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        '{"question": "q"}',
        '{"question": "q", "answer": "no number"}',
        '{"question": null, "answer": "1"}',
        '{"question": "half a pair \\ud800", "answer": "1"}',
        "[1]",
    ],
)
def test_a_file_in_another_form_is_a_configuration_error(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"question": "q", "answer": "1"}) + "\n" + line + "\n")
    with pytest.raises(ConfigError, match=r"task.data_path: .*rows.jsonl:2"):
        gsm8k.read_rows(path)


def test_what_is_no_text_file_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b"\xff\xfe")
    for path in (tmp_path, tmp_path / "rows.jsonl"):
        with pytest.raises(ConfigError, match=r"task.data_path: .* cannot be read as text"):
            gsm8k.read_rows(path)


def test_a_line_ends_at_a_newline_only_and_may_be_blank(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes('{"question": "a\u2028b\x85c", "answer": "#### 1"}\r\n\n'.encode())
    assert gsm8k.read_rows(path) == [Row("a\u2028b\x85c", "#### 1")]
