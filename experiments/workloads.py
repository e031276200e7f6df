"""The data a cell is measured on, as local files: prompts for the load client, warm-up prompts, task rows.

What is not given is generated: held-out word problems from a seed, filed under the hash of their content, so that
equal settings give equal files. The surprise: warm-up prompts come from the same stream behind the measured ones and
are never among them, also where the measured ones come from a file of yours.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.errors import ConfigError
from experiments.files import once
from experiments.record import write_atomically
from experiments.tasks.gsm8k import Row, few_shot, question, read_rows
from ling_runtime.training.problems.generate import generate

if TYPE_CHECKING:
    from experiments.engines.interface import EngineClient
    from experiments.spec import CellSpec, TaskSpec, WorkloadSpec

WARMUP_TOKENS = 32


@dataclass(frozen=True, kw_only=True)
class Data:
    dataset: Path
    """ShareGPT form; a calibration's: JSONL of prompts."""
    dataset_sha256: str
    warmup: tuple[str, ...]
    task_rows: tuple[Row, ...]
    """Examples first."""
    task_sha256: str | None
    """None: no task."""
    task_file: Path | None = None
    """Where the questions are."""


def prepare(cell: CellSpec, directory: Path) -> Data:
    """Files in `directory` for what the cell does not name. Raises ConfigError for data that do not suffice."""
    directory.mkdir(parents=True, exist_ok=True)
    if cell.calibrates:
        return _to_continue(cell, directory)
    measured, warmup = _prompts(cell.workload)
    path = Path(cell.workload.dataset_path) if cell.workload.dataset_path else _file(directory, ".json", measured)
    check_dataset(path, cell.workload)
    rows, task_sha256 = task_rows(cell.task, directory)
    return Data(
        dataset=path,
        dataset_sha256=content_sha256(path),
        warmup=warmup,
        task_rows=rows,
        task_sha256=task_sha256,
        task_file=questions_file(cell.task, directory),
    )


def task_rows(task: TaskSpec, directory: Path) -> tuple[tuple[Row, ...], str | None]:
    """A task's examples and questions, and the hash of the files that they come from. Raises ConfigError."""
    path = questions_file(task, directory)
    if path is None:
        return (), None
    questions, wanted = rows_of(path), task.num_questions + own_shots(task)
    if len(questions) < wanted:
        problem = f"{path} has {len(questions)} rows; {own_shots(task)} examples come first"
        raise ConfigError("task.num_questions", problem)
    rows = questions[:wanted]
    if not task.shots_path:
        return rows, content_sha256(path)
    shots = Path(task.shots_path)
    examples = rows_of(shots)[: task.num_shots]
    if len(examples) < task.num_shots:
        raise ConfigError("task.num_shots", f"{shots} has {len(examples)} rows")
    return (*examples, *rows), sha256(shots.read_bytes() + path.read_bytes())


def own_shots(task: TaskSpec) -> int:
    """Rows of the questions' own file that are examples."""
    return 0 if task.shots_path else task.num_shots


def questions_file(task: TaskSpec, directory: Path) -> Path | None:
    """The one that the task names, or a generated one in `directory`; None without a task."""
    if task.name == "none":
        return None
    if task.data_path:
        return Path(task.data_path)
    rows = problems(task.seed, task.num_questions + own_shots(task))
    return _file(directory, ".jsonl", "".join(json.dumps(vars(row)) + "\n" for row in rows))


def warm_up(client: EngineClient, prompts: tuple[str, ...], input_len: int | None) -> None:
    """Disjoint prompts of the measured length; the caller flushes afterwards."""
    for prompt in prompts:
        once = client.generate(text=prompt, max_new_tokens=WARMUP_TOKENS, ignore_eos=True)
        copies = (input_len or 0) // once.prompt_tokens
        if copies > 1:
            client.generate(text=prompt * copies, max_new_tokens=WARMUP_TOKENS, ignore_eos=True)


@lru_cache(maxsize=8)
def problems(seed: int, count: int) -> list[Row]:
    return [Row(problem.question, problem.answer) for problem in generate(seed, count, "heldout")]


def check_dataset(path: Path, load: WorkloadSpec) -> None:
    """The client would silently measure fewer prompts than asked for."""
    try:
        usable = conversations(path)
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        problem = f"{path} is not a JSON list in ShareGPT's form ({error!r})"
        raise ConfigError("workload.dataset_path", problem) from error
    if load.dataset_name != "random-ids" and usable < load.num_prompts:
        raise ConfigError("workload.num_prompts", f"{path} has {usable} conversations of two turns")


@once
def conversations(path: Path) -> int:
    """Those of two turns."""
    dialogues = [row.get("conversations", row.get("conversation", ())) for row in json.loads(path.read_text())]
    return sum(len([turn["value"] for turn in turns[:2]]) == 2 for turns in dialogues)


@once
def rows_of(path: Path) -> tuple[Row, ...]:
    return tuple(read_rows(path))


@once
def content_sha256(path: Path) -> str:
    return sha256(path.read_bytes())


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _prompts(load: WorkloadSpec) -> tuple[str, tuple[str, ...]]:
    """ShareGPT-form JSON of the measured prompts, and the warm-up prompts. No two prompts share an example."""
    texts = _worked(load.seed, load.num_prompts + load.warmup_prompts, load.num_shots)
    measured = [{"conversations": [{"from": "human", "value": asked}, {"from": "gpt", "value": answer}]}
                for asked, answer in texts[: load.num_prompts]]  # fmt: skip
    return json.dumps(measured, indent=1), tuple(asked for asked, _ in texts[load.num_prompts :])


@lru_cache(maxsize=8)
def _worked(seed: int, count: int, shots: int) -> list[tuple[str, str]]:
    """Prompts of `shots` worked examples and a question, each with its answer; the same for all cells of a study."""
    size = shots + 1
    rows = problems(seed, size * count)
    groups = [rows[start : start + size] for start in range(0, len(rows), size)]
    return [(few_shot(group[:-1]) + question(group[-1]), " " + group[-1].answer) for group in groups]


def _to_continue(cell: CellSpec, directory: Path) -> Data:
    """A line of JSON a prompt; nothing that a benchmark or a task has a use for."""
    wanted = cell.calibration
    texts = _worked(wanted.seed, wanted.num_prompts, cell.workload.num_shots)
    path = _file(directory, ".jsonl", "".join(json.dumps({"text": asked}) + "\n" for asked, _ in texts))
    return Data(dataset=path, dataset_sha256=content_sha256(path), warmup=(), task_rows=(), task_sha256=None)


def _file(directory: Path, suffix: str, text: str) -> Path:
    path = (directory / f"problems-{sha256(text.encode())}{suffix}").absolute()
    if not path.exists():
        write_atomically(path, text)
    return path
