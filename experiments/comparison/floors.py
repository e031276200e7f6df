"""The A/A floor of this machine, model and workload: found in output_dir, or measured there before anything is judged.

One file per identity, and beside it the answers it was made of. The surprise: the code under test is no part of that
identity, the harness is. A floor says what this machine and this ruler do to two equal servers; a new build of the
engine does not change it, and another client does.
"""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from analysis.ab import compare
from analysis.floor import Floor, FloorError, from_runs, identity, usable
from experiments import environment, ruler
from experiments.comparison import timing
from experiments.comparison.load import block_harness
from experiments.comparison.requests import requests
from experiments.comparison.timing import Rules
from experiments.findings import FOREIGN_LOAD
from experiments.machine import LoadMeter
from experiments.record import write_json, write_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from analysis.pairs import Answer
    from experiments.comparison.arms import Arms
    from experiments.comparison.spec import ABSpec
    from experiments.preparation import Prepared

    Open = Callable[[Path], AbstractContextManager[Arms]]
    """Two freshly launched servers of one cell, with their logs in a directory."""

DIRECTORY = "floors"
NO_PART = ("command", "ready_timeout_s", "host")
FILE = "floor.json"


def floor_identity(item: Prepared, settings: ABSpec) -> str:
    spec = item.cell.spec
    engine = {key: str(value) for key, value in vars(spec.engine).items() if key not in NO_PART}
    return identity(
        {
            **engine,
            "hardware": environment.hardware_class(environment.capture()),
            "model": ruler.source_revision(spec.model.path, spec.model.revision),
            "dataset": item.data.dataset_sha256,
            "load": ruler.load(spec.workload),
            "prompts": f"{spec.workload.num_prompts}, {settings.prompts} to a block",
            "runs": f"{settings.floor_runs} of {settings.floor_blocks} blocks",
            "servers": f"{settings.servers}, started {settings.start}",
            "harness": block_harness(),
        }
    )


def find(directory: Path, wanted: str, settings: ABSpec) -> Floor:
    """Raises FloorError where there is none, or none that may be used."""
    path = directory / FILE
    known = Floor.from_json(json.loads(path.read_text())) if path.exists() else None
    return usable(known, wanted, dt.datetime.now(dt.UTC), dt.timedelta(days=settings.floor_days))


def floor(output: Path, item: Prepared, settings: ABSpec, open_arms: Open, say: Callable[[str], None]) -> Floor:
    """Raises CellError where the A/A runs fail."""
    wanted = floor_identity(item, settings)
    directory = output / DIRECTORY / wanted
    try:
        return find(directory, wanted, settings)
    except FloorError as error:
        say(f"{error}: {settings.floor_runs} A/A runs of {settings.floor_blocks} blocks")
    directory.mkdir(parents=True, exist_ok=True)
    meter = LoadMeter()
    ratios = [aa_run(item, settings, open_arms, directory, run, say) for run in range(1, settings.floor_runs + 1)]
    found = from_runs(ratios, wanted, dt.datetime.now(dt.UTC), round(meter.foreign_cores(), 3))
    write_json(directory / FILE, found.to_json())
    return found


def remark(known: Floor) -> str | None:
    """What a reader of a decision should know of its floor."""
    if known.foreign_cores is None or known.foreign_cores <= FOREIGN_LOAD:
        return None
    file = f"{DIRECTORY}/{known.identity}/{FILE}"
    return f"others used {known.foreign_cores:.2f} cores while the A/A floor was measured; without {file} it is anew"


def aa_run(
    item: Prepared, settings: ABSpec, open_arms: Open, directory: Path, run: int, say: Callable[[str], None]
) -> float:
    """The log-ratio of step time of one A/A run."""
    rules = Rules(
        budget_s=settings.budget_s,
        prompts=settings.prompts,
        seed=settings.seed + run,
        blocks=settings.floor_blocks,
    )
    with open_arms(directory) as arms:
        timed = timing.run(arms.slot, requests(item.cell.spec, item.data.dataset), rules, told=_nobody)
    write_lines(directory / f"answers-{run}.jsonl", [asdict(answer) for answer in timed.answers])
    result = compare(timed.pairs, seed=rules.seed).always_valid["step_time"]
    say(f"A/A run {run}: {result} in {timed.spent_s:.0f} s")
    return result.estimate


def _nobody(block: int, answers: Sequence[Answer]) -> None:
    """Nobody looks while an A/A runs."""
    del block, answers
