"""Calibrating a draft on this machine: what scheduled verification goes by, made by three programs of the runtime.

`collect` continues held-out prompts and notes what the confidence head said and what came of it, `fit` makes
temperatures of that, `profile` times steps by their rows. The surprise: this is a cell. It has the lock, the cores,
the record and the failures of one, and only the artifacts in place of figures; they appear when all three have ended
well, or not at all.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.reliability import reliability_svg
from experiments import plan
from experiments.child import child_env
from experiments.command import Command
from experiments.errors import CellError, OutOfMemory
from experiments.limits import within
from experiments.process import Supervised
from experiments.record import write_text
from experiments.spec import EngineSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from experiments.limits import Part
    from experiments.progress import Stages
    from experiments.spec import CellSpec

PROGRAM = (sys.executable, "-m", "ling_runtime.calibration")
FILES = SAMPLES, STS, COST_TABLE, RELIABILITY = "samples.pt", "sts.json", "cost_table.json", "reliability.svg"
ARTIFACTS = {"sts_path": STS, "cost_table_path": COST_TABLE}
"""By the key under `speculation` that takes it."""

BINDING = ("device", "dtype", "num_threads")
"""Keys of the engine that a cost table is bound to."""

ASIDE = ".unfinished"
POLL_S = 0.1


def calibrate(spec: CellSpec, prompts: Path, attempt: Path, cores: Sequence[int], stages: Stages) -> dict[str, Any]:
    """What a calibrated cell changes in its record. Raises CellError."""
    aside = attempt / ASIDE
    aside.mkdir()
    totals: dict[Part, int] = {"collect": spec.calibration.num_prompts, "profile": spec.calibration.rounds}
    try:
        pasted = commands(spec, prompts, Path())
        write_text(attempt / "command.txt", "".join(f"{command.shell()}\n" for command in pasted.values()))
        for part, command in commands(spec, prompts, aside).items():
            stages.enter(part, totals.get(part))
            with within(part, spec.calibration.timeout_s):
                run(part, command, attempt / f"{part}.log", cores, stages.advance)
        drawing = reliability_svg(plan.label(spec.speculation), json.loads((aside / STS).read_text()))
        write_text(aside / RELIABILITY, drawing)
        for file in FILES:
            (aside / file).replace(attempt / file)
    finally:
        shutil.rmtree(aside)
    return conclusion(spec, attempt)


def commands(spec: CellSpec, prompts: Path, directory: Path) -> dict[Part, Command]:
    """The three programs with their files in `directory`, in order. Lines to paste write where they are pasted."""
    wanted, engine, speculation = spec.calibration, spec.engine, spec.speculation
    assert speculation.draft_path is not None
    executor = {
        "--model-path": spec.model.path,
        "--speculative-draft-model-path": speculation.draft_path,
        "--speculative-dspark-block-size": speculation.block_size,
        "--device": engine.device,
        "--dtype": engine.dtype,
        "--num-threads": engine.threads,
    }
    chosen = [part for pair in sorted(spec.kernels.items()) for part in ("--kernel", "=".join(pair))]
    samples, sts, costs = (directory / name for name in (SAMPLES, STS, COST_TABLE))
    collect = {
        "--prompts": prompts,
        "--max-new-tokens": wanted.output_len,
        "--temperature": wanted.temperature,
        "--max-running-requests": engine.max_running_requests,
        "--out": samples,
    }
    arguments: dict[Part, list[str]] = {
        "collect": [*_flat(executor | collect), *chosen],
        "fit": [*_flat(executor | {"--samples": samples, "--out": sts}), *chosen],
        "profile": [
            *_flat(executor | {"--rounds": wanted.rounds, "--seed": wanted.seed, "--out": costs}),
            "--requests",
            *map(str, wanted.requests),
            *chosen,
        ],
    }
    env = {**child_env(engine.threads), **spec.env}
    program = wanted.command or PROGRAM
    return {part: Command((*program, part, *given), env) for part, given in arguments.items()}


def run(part: Part, command: Command, log: Path, cores: Sequence[int], advance: Callable[[int], None]) -> None:
    """`advance(n)` after n more lines of progress. Raises OutOfMemory, or CellError with the log's end."""
    seen = 0
    with Supervised.start(command, log=log, cores=cores) as child:
        while True:
            try:
                code = child.wait(POLL_S)
                break
            except subprocess.TimeoutExpired:
                advance((now := progress(part, log)) - seen)
                seen = now
        if code and (said := child.memory_ran_out()):
            raise OutOfMemory(f"{part} ran out of memory (code {code}): {said}", child.tail())
        if code:
            raise CellError(f"{part} ended with code {code}", child.tail())


def progress(part: Part, log: Path) -> int:
    """Of lines such as `collect 3/64`, the last one's first number."""
    marks = re.findall(rf"^{part} (\d+)/", log.read_text(errors="replace"), re.MULTILINE)
    return int(marks[-1]) if marks else 0


def conclusion(spec: CellSpec, attempt: Path) -> dict[str, Any]:
    artifacts = {key: str(attempt / name) for key, name in ARTIFACTS.items()}
    sts, costs = (json.loads((attempt / name).read_text()) for name in (STS, COST_TABLE))
    return {
        "status": "valid",
        "failure": None,
        "rule": "calibrated",
        "reason": "temperatures and cost table are written",
        "artifacts": artifacts,
        "use": use(spec, artifacts),
        "calibration": {"sts": sts, "cost_table": costs},
        "flags": [*flags(sts)],
    }


def flags(sts: Mapping[str, Any]) -> Iterator[str]:
    """What a reader should know beside the artifacts."""
    before, after = statistics.fmean(sts["ece_before"]), statistics.fmean(sts["ece_after"])
    if after > before:
        yield (
            f"temperatures raise the calibration error of requests that they were not fitted to ({before:.4f} to "
            f"{after:.4f}): fit them to more (calibration.num_prompts), or leave out speculation.sts_path"
        )


def use(spec: CellSpec, artifacts: Mapping[str, str]) -> str:
    """The line that serves with these artifacts: with the model, draft, block, machine and kernels that they bind."""
    speculation, engine = spec.speculation, spec.engine
    keys = {
        "speculation": "dspark",
        "speculation.block_size": speculation.block_size,
        "speculation.draft_path": speculation.draft_path,
        "model.path": spec.model.path,
        **{
            f"engine.{key}": getattr(engine, key)
            for key in BINDING
            if getattr(engine, key) != getattr(EngineSpec(), key)
        },
        **{f"kernels.{operator}": variant for operator, variant in sorted(spec.kernels.items())},
        "speculation.verify_mode": "compact",
        **{f"speculation.{key}": path for key, path in artifacts.items()},
    }
    return " ".join(["python run.py", *(shlex.quote(f"{key}={value}") for key, value in keys.items())])


def _flat(values: dict[str, Any]) -> list[str]:
    return [str(part) for pair in values.items() for part in pair]
