"""What people type to load a server of SGLang: its own clients, for a dry run to print.

The surprise: this program runs neither. Its own client is SGLang's with a note taken of every answer, and its own task
asks and marks as SGLang's does; these lines are there to be held beside somebody else's, flag by flag.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.command import Command
from experiments.engines.command_line import spelled

if TYPE_CHECKING:
    from experiments.engines.command_line import Value
    from experiments.spec import CellSpec
    from experiments.workloads import Data

PYTHON = ("python3", "-m")


def lines(cell: CellSpec, url: str, data: Data) -> dict[str, Command]:
    """In the order in which SGLang's own page writes them, with what this program adds at the end."""
    found = {"the same load by SGLang's client alone": client(cell, url, data)}
    if data.task_file is not None:
        found["its task by SGLang's client, which scores its examples too"] = task(cell, url, data)
    return found


def client(cell: CellSpec, url: str, data: Data) -> Command:
    load = cell.workload
    lengths: dict[str, Value] = {"--sharegpt-output-len": load.output_len}
    if load.dataset_name != "sharegpt":
        given = {"--random-input-len": load.input_len, "--random-output-len": load.output_len}
        lengths = {**given, "--random-range-ratio": 1.0}
    flags: dict[str, Value] = {
        "--backend": "sglang",
        "--dataset-name": load.dataset_name,
        "--num-prompts": load.num_prompts,
        **lengths,
        "--max-concurrency": load.max_concurrency,
        "--base-url": url,
        "--model": cell.model.path,
        "--tokenizer": cell.model.tokenizer_path,
        "--dataset-path": str(data.dataset),
        "--seed": load.seed,
    }
    return Command((*PYTHON, "sglang.bench_serving", *spelled(flags)))


def task(cell: CellSpec, url: str, data: Data) -> Command:
    host, _, port = url.rpartition(":")
    flags: dict[str, Value] = {
        "--num-questions": cell.task.num_questions,
        "--num-shots": cell.task.num_shots,
        "--max-new-tokens": cell.task.max_new_tokens,
        "--parallel": cell.task.parallel,
        "--host": host,
        "--port": port,
        "--data-path": str(data.task_file),
    }
    return Command((*PYTHON, "sglang.test.few_shot_gsm8k", *spelled(flags)))
