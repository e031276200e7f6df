"""What must hold before anything starts: a cell's values against each other, the files, the model and the registry.

The surprise: `checked` also completes the cell (draft tokens, absolute paths), so that everything behind it, identity
included, sees what will really run and not how it was spelled.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from experiments import limits, plan, speculation
from experiments.engine import PROGRAMS
from experiments.errors import ConfigError
from ling_runtime.config import ConfigError as ModelConfigError
from ling_runtime.config import ModelConfig

if TYPE_CHECKING:
    from experiments.spec import CellSpec
    from ling_runtime.ops.registry import Variant

SMALLEST_OUTPUT = 4
"""The load client refuses less."""


def checked(cell: CellSpec) -> CellSpec:
    """The cell, completed. Raises ConfigError naming the key and what it may be."""
    _check_engine(cell)
    model = replace(
        cell.model,
        drafts={},
        path=str(Path(cell.model.path).absolute()),
        tokenizer_path=cell.model.tokenizer_path and str(_existing("model.tokenizer_path", cell.model.tokenizer_path)),
    )
    workload = replace(
        cell.workload,
        dataset_path=cell.workload.dataset_path and str(_existing("workload.dataset_path", cell.workload.dataset_path)),
    )
    task = replace(cell.task, data_path=cell.task.data_path and str(_existing("task.data_path", cell.task.data_path)))
    gate = replace(cell.gate, golden=cell.gate.golden and str(_existing("gate.golden", cell.gate.golden)))
    drafts = speculation.completed(cell.speculation, cell.model)
    done = replace(cell, speculation=drafts, model=model, workload=workload, task=task, gate=gate)
    _check_model(done)
    _check_numbers(done)
    _check_calibration(done)
    _check_kernels(done.kernels)
    return done


def _check_engine(cell: CellSpec) -> None:
    if cell.engine.name not in PROGRAMS and not cell.engine.command:
        raise ConfigError("engine.name", f"{cell.engine.name!r} cannot be started; allowed: {', '.join(PROGRAMS)}")


def _check_model(cell: CellSpec) -> None:
    path = Path(cell.model.path)
    try:
        config = ModelConfig.from_pretrained(path)
    except ModelConfigError as error:
        raise ConfigError("model.path", str(error)) from error
    if not [*path.glob("*.safetensors")]:
        raise ConfigError("model.path", f"{path} holds no *.safetensors; expected a local checkpoint directory")
    tokenizer = Path(cell.model.tokenizer_path or path)
    if not (tokenizer / "tokenizer.json").is_file():
        raise ConfigError("model.tokenizer_path", f"{tokenizer} holds no tokenizer.json")
    speculation.check(cell, config)
    wanted = (cell.workload.input_len or 0) + cell.workload.output_len
    context = cell.engine.context_length or config.max_position_embeddings
    if wanted > context:
        raise ConfigError("workload", f"input_len + output_len = {wanted} exceeds the context of {context} tokens")


def _check_numbers(cell: CellSpec) -> None:
    load, task, gate = cell.workload, cell.task, cell.gate
    smallest = {
        "engine.num_threads": (cell.engine.num_threads, 1),
        "engine.max_running_requests": (cell.engine.max_running_requests, 1),
        "workload.num_prompts": (load.num_prompts, 1),
        "workload.output_len": (load.output_len, SMALLEST_OUTPUT),
        "workload.max_concurrency": (load.max_concurrency, 1),
        "workload.warmup_prompts": (load.warmup_prompts, 0),
        "task.num_questions": (task.num_questions, 1),
        "task.num_shots": (task.num_shots, 0),
        "task.parallel": (task.parallel, 1),
        "gate.parity_prompts": (gate.parity_prompts, 1),
        "gate.parity_tokens": (gate.parity_tokens, 1),
        "gate.pollution_requests": (gate.pollution_requests, 1),
        "calibration.num_prompts": (cell.calibration.num_prompts, 1),
        "calibration.rounds": (cell.calibration.rounds, 1),
        "calibration.output_len": (cell.calibration.output_len, 1),
    }
    for key, (value, least) in smallest.items():
        if value < least:
            raise ConfigError(key, f"{value} is too small; allowed: {least} and more")
    flat = plan.flat(cell)
    for key in limits.KEYS.values():
        if flat[key] <= 0:
            raise ConfigError(key, f"{flat[key]:g} is no limit; allowed: seconds above 0")
    if (load.input_len is None) != (load.dataset_name == "sharegpt"):
        raise ConfigError("workload.input_len", "needed for dataset_name=random and random-ids, and only there")


def _check_calibration(cell: CellSpec) -> None:
    wanted = cell.calibration
    if not cell.calibrates:
        return
    if cell.speculation.algorithm != wanted.name:
        raise ConfigError("calibration", f"calibrates speculation={wanted.name}, not {cell.speculation.algorithm}")
    if wanted.temperature < 0:
        raise ConfigError("calibration.temperature", f"{wanted.temperature:g} is no temperature; allowed: 0 and more")
    batches = wanted.requests
    if not batches or min(batches) < 1 or max(batches) > cell.engine.max_running_requests:
        allowed = f"1 to engine.max_running_requests={cell.engine.max_running_requests}"
        raise ConfigError(
            "calibration.requests", f"{[*batches]} are no batches that the engine runs; allowed: {allowed}"
        )


def _check_kernels(kernels: dict[str, str]) -> None:
    if not kernels:
        return
    known: dict[str, list[str]] = {}
    for variant in registered_variants():
        known.setdefault(variant.operator, []).append(variant.name)
    for operator, name in kernels.items():
        if operator not in known:
            raise ConfigError(f"kernels.{operator}", f"no such operator; allowed: {', '.join(sorted(known))}")
        if name not in known[operator]:
            raise ConfigError(f"kernels.{operator}", f"{name!r} is not one of {', '.join(known[operator])}")


def registered_variants() -> tuple[Variant, ...]:
    """The kernel registry; it imports torch, which a run without kernel overrides need not wait for."""
    from ling_runtime.ops.registry import variants  # noqa: PLC0415

    return variants()


def _existing(key: str, value: str) -> Path:
    path = Path(value).absolute()
    if not path.exists():
        raise ConfigError(key, f"{path} does not exist")
    return path
