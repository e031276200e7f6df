"""Grade-school maths with worked examples, prompted and marked as sglang.test.few_shot_gsm8k does it.

Same prompt text, stop strings and answer rule, same four figures, from any local JSONL in GSM8K's form. The surprise:
the first `num_shots` rows are the examples and are not scored (few_shot_gsm8k scores them too), so that no question
is answered in its own prompt.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.errors import ConfigError, MeasurementError
from experiments.threads import asking

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from experiments.clients.generate import Generation
    from experiments.engines.interface import EngineClient
    from experiments.spec import TaskSpec

STOP = ("Question", "Assistant:", "<|separator|>")


@dataclass(frozen=True)
class Row:
    question: str
    answer: str


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One marked question, a line of task.jsonl; arms are paired by `question_sha256`."""

    index: int
    question_sha256: str
    label: int
    predicted: int | None
    """None: no number in the text (counted as invalid)."""
    correct: bool
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Score:
    name: str
    accuracy: float
    invalid: float
    latency_s: float
    """Of the whole run, as few_shot_gsm8k prints it."""
    output_tok_s: float
    stop_rate: float
    truncation_rate: float
    questions: int
    correct: int
    floor: float | None


def read_rows(path: Path) -> list[Row]:
    """Raises ConfigError for a file that is not in GSM8K's form."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # splitlines() would also split at U+2028 inside a text
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("task.data_path", f"{path} cannot be read as text ({error})") from error
    rows = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                rows.append(_row(line))
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(
                    "task.data_path", f"{path}:{number} is not {{question, answer}} ({error!r})"
                ) from error
    return rows


def _row(line: str) -> Row:
    row = json.loads(line)
    question, answer = row["question"], row["answer"]
    if not isinstance(question, str) or not isinstance(answer, str):
        raise TypeError("question and answer are texts")
    (question + answer).encode()  # half a surrogate pair cannot be sent
    if answer_value(answer) is None:
        raise ValueError("an answer without a number")
    return Row(question, answer)


def few_shot(rows: Sequence[Row]) -> str:
    """The worked examples that stand before every question."""
    return "".join(f"Question: {row.question}\nAnswer: {row.answer}\n\n" for row in rows)


def question(row: Row) -> str:
    return f"Question: {row.question}\nAnswer:"


def answer_value(text: str) -> int | None:
    """The last integer of a text, commas ignored; one with leading zeros is no number, as in Python's own literals."""
    numbers = re.findall(r"\d+", text.replace(",", ""))
    if not numbers or not numbers[-1].isascii() or (numbers[-1][0] == "0" and numbers[-1].strip("0")):
        return None
    try:
        return int(numbers[-1])
    except ValueError:  # more digits than Python reads, few_shot_gsm8k's literal_eval included
        return None


def run(
    client: EngineClient, rows: Sequence[Row], task: TaskSpec, answered: Callable[[int], None]
) -> tuple[Score, tuple[Answer, ...]]:
    """Ask and mark `num_questions` rows after the examples; `answered(1)` is called after each."""
    examples = few_shot(rows[: task.num_shots])
    asked = rows[task.num_shots : task.num_shots + task.num_questions]

    def ask(item: tuple[int, Row]) -> Answer:
        index, row = item
        generation = client.generate(
            text=examples + question(row), max_new_tokens=task.max_new_tokens, temperature=0.0, stop=STOP
        )
        answered(1)
        return mark(index, row, generation)

    start = time.perf_counter()
    with asking(task.parallel) as pool:
        answers = tuple(pool.map(ask, enumerate(asked, task.num_shots)))
    return score(answers, latency_s=time.perf_counter() - start, floor=task.floor), answers


def mark(index: int, row: Row, generation: Generation) -> Answer:
    if generation.finish_reason not in ("stop", "length"):
        raise MeasurementError(f"question {index} ended with {generation.finish_reason!r}")
    label, predicted = answer_value(row.answer), answer_value(generation.text)
    assert label is not None, "read_rows refuses such a row"
    return Answer(
        index=index,
        question_sha256=hashlib.sha256(row.question.encode()).hexdigest(),
        label=label,
        predicted=predicted,
        correct=predicted == label,
        finish_reason=generation.finish_reason,
        prompt_tokens=generation.prompt_tokens,
        completion_tokens=generation.completion_tokens,
        text=generation.text,
    )


def score(answers: Sequence[Answer], *, latency_s: float, floor: float | None) -> Score:
    count = len(answers)
    correct = sum(a.correct for a in answers)
    return Score(
        name="gsm8k",
        accuracy=correct / count,
        invalid=sum(a.predicted is None for a in answers) / count,
        latency_s=latency_s,
        output_tok_s=sum(a.completion_tokens for a in answers) / latency_s,
        stop_rate=sum(a.finish_reason == "stop" for a in answers) / count,
        truncation_rate=sum(a.finish_reason == "length" for a in answers) / count,
        questions=count,
        correct=correct,
        floor=floor,
    )
