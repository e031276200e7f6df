"""The task's questions, asked of a live server, as answers that can be paired with another server's."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.limits import within
from experiments.tasks import gsm8k
from experiments.workloads import task_rows
from gates.evidence import TaskAnswers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.engines.interface import EngineClient
    from experiments.spec import TaskSpec
    from experiments.tasks.gsm8k import Answer, Score


def ask(client: EngineClient, task: TaskSpec) -> TaskAnswers | None:
    """None: no task is configured. Raises ConfigError, ProtocolError, MeasurementError, PhaseTimeout."""
    with tempfile.TemporaryDirectory() as directory:
        rows, sha256 = task_rows(task, Path(directory))
    if sha256 is None:
        return None
    with within("task", task.timeout_s):
        score, answers = gsm8k.run(client, rows, task, lambda _: None)
    return marked(task, sha256, score, answers)


def marked(task: TaskSpec, sha256: str, score: Score, answers: Sequence[Answer]) -> TaskAnswers:
    """Two servers' answers are to the same questions if file, examples and count are the same."""
    return TaskAnswers(
        name=score.name,
        data_hash=f"{sha256}:{task.num_shots}+{score.questions}",
        correct=tuple(answer.correct for answer in answers),
        invalid_rate=score.invalid,
        stop_rate=score.stop_rate,
        truncation_rate=score.truncation_rate,
    )
