"""What must hold before anything starts: a cell's values against each other, the files, and what its engine can do.

The surprise: `checked` also completes the cell (draft tokens, absolute paths), so that everything behind it, identity
included, sees what will really run and not how it was spelled.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from experiments import limits, plan, secrets, speculation
from experiments.engines.interface import OWN_KEYS
from experiments.engines.registry import engine_of
from experiments.errors import ConfigError
from experiments.ports import is_address
from experiments.spec import EngineSpec

if TYPE_CHECKING:
    from experiments.engines.interface import Engine
    from experiments.spec import CellSpec

SMALLEST_OUTPUT = 4
"""The load client refuses less."""


def checked(cell: CellSpec) -> CellSpec:
    """The cell, completed. Raises ConfigError naming the key and what it may be."""
    engine = engine_of(cell)
    _refuse_foreign(cell, engine)
    _check_host(cell)
    _check_key(cell)
    model = replace(
        cell.model,
        drafts={},
        path=speculation.located(cell.model.path, hub=engine.hub),
        tokenizer_path=cell.model.tokenizer_path and str(_existing("model.tokenizer_path", cell.model.tokenizer_path)),
    )
    workload = replace(
        cell.workload,
        dataset_path=cell.workload.dataset_path and str(_existing("workload.dataset_path", cell.workload.dataset_path)),
    )
    task = replace(
        cell.task,
        data_path=cell.task.data_path and str(_existing("task.data_path", cell.task.data_path)),
        shots_path=cell.task.shots_path and str(_existing("task.shots_path", cell.task.shots_path)),
    )
    gate = replace(cell.gate, golden=cell.gate.golden and str(_existing("gate.golden", cell.gate.golden)))
    drafts = speculation.completed(cell.speculation, cell.model, engine)
    done = replace(cell, speculation=drafts, model=model, workload=workload, task=task, gate=gate)
    done = engine.completed(done, cell)
    _check_numbers(done)
    engine.check(done)
    _check_calibration(done)
    return done


def _refuse_foreign(cell: CellSpec, engine: Engine) -> None:
    """A key that the engine does not read would be a change without effect."""
    default = EngineSpec()
    for key in OWN_KEYS:
        if key not in engine.keys and getattr(cell.engine, key) != getattr(default, key):
            allowed = ", ".join(engine.keys) or "none of these keys"
            raise ConfigError(f"engine.{key}", f"engine={engine.name} has no use for it; allowed: {allowed}")
    if cell.model.weights == "drawn" and not engine.draws:
        raise ConfigError("model.weights", f"engine={engine.name} draws none by this key; allowed: checkpoint")


def _check_host(cell: CellSpec) -> None:
    host, given = cell.engine.host, (*cell.engine.extra_args, *(f"--{flag}" for flag in cell.engine.flags))
    if not is_address(host):
        raise ConfigError("engine.host", f"{host!r} is no IPv4 address of this machine; 0.0.0.0 is all of them")
    if any(flag.partition("=")[0] == "--host" for flag in given):
        raise ConfigError("engine.extra_args", "--host is engine.host, and as a flag it would go unnoticed")


def _check_key(cell: CellSpec) -> None:
    name = cell.engine.api_key_env
    if name is not None and not secrets.VARIABLE.fullmatch(name):
        problem = "is no name of an environment variable, and not repeated, for it may be the key itself"
        raise ConfigError("engine.api_key_env", f"{problem}; allowed: letters, digits and _, none of the digits first")


def _check_numbers(cell: CellSpec) -> None:
    load, task, gate = cell.workload, cell.task, cell.gate
    smallest = {
        "engine.num_threads": (cell.engine.num_threads, 1),
        "engine.max_running_requests": (cell.engine.max_running_requests, 1),
        "engine.tp_size": (cell.engine.tp_size, 1),
        "engine.ep_size": (cell.engine.ep_size, 1),
        "engine.dp_size": (cell.engine.dp_size, 1),
        "engine.context_length": (cell.engine.context_length, 1),
        "workload.num_prompts": (load.num_prompts, 1),
        "workload.input_len": (load.input_len, 1),
        "workload.output_len": (load.output_len, SMALLEST_OUTPUT),
        "workload.max_concurrency": (load.max_concurrency, 1),
        "workload.warmup_prompts": (load.warmup_prompts, 0),
        "workload.num_shots": (load.num_shots, 0),
        "task.num_questions": (task.num_questions, 1),
        "task.num_shots": (task.num_shots, 0),
        "task.max_new_tokens": (task.max_new_tokens, 1),
        "task.parallel": (task.parallel, 1),
        "gate.parity_prompts": (gate.parity_prompts, 1),
        "gate.parity_tokens": (gate.parity_tokens, 1),
        "gate.pollution_requests": (gate.pollution_requests, 1),
        "gate.near_tie": (gate.near_tie, 0),
        "change.accept_bound": (cell.change.accept_bound, 0),
        "change.equal_margin": (cell.change.equal_margin, 0),
        "calibration.num_prompts": (cell.calibration.num_prompts, 1),
        "calibration.rounds": (cell.calibration.rounds, 1),
        "calibration.output_len": (cell.calibration.output_len, 1),
    }
    for key, (value, least) in smallest.items():
        if value is not None and value < least:
            raise ConfigError(key, f"{value} is too small; allowed: {least} and more")
    if task.floor is not None and not 0 <= task.floor <= 1:
        raise ConfigError("task.floor", f"{task.floor:g} is no share of correct answers; allowed: 0 to 1")
    fraction = cell.engine.mem_fraction_static
    if fraction is not None and not 0 < fraction < 1:
        raise ConfigError("engine.mem_fraction_static", f"{fraction:g} is no part of memory; allowed: between 0 and 1")
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
    batches, most = wanted.requests, cell.engine.max_running_requests or 0
    if not batches or min(batches) < 1 or max(batches) > most:
        allowed = f"1 to engine.max_running_requests={most}"
        raise ConfigError(
            "calibration.requests", f"{[*batches]} are no batches that the engine runs; allowed: {allowed}"
        )


def _existing(key: str, value: str) -> Path:
    path = Path(value).absolute()
    if not path.exists():
        raise ConfigError(key, f"{path} does not exist")
    return path
