"""What a run would do, without doing it: the exact command lines, or a look at the machine it would run on.

The surprise: both come after the whole preparation, so a dry run that prints lines has also proved the configuration,
the data and the model's files, and its lines can be pasted.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from experiments import calibration, drawn, summary
from experiments.audit import report
from experiments.clients import bench_serving
from experiments.engines.registry import engine_of
from experiments.errors import ConfigError
from experiments.gpu import gpus
from experiments.lock import is_free, lock_file
from experiments.machine import available_cores, load_average, split_cores
from experiments.ports import free_port, reached
from experiments.store import look
from gates.verdict import CONFIGURATION, INVALID, OK

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from experiments.command import Command
    from experiments.preparation import Plan, Prepared

MIN_FREE_DISK_GIB = 1.0
MEMORY_FACTOR = 3.0
"""Free memory wanted per byte of checkpoint: weights in fp32, and the load itself."""

WORDS = {True: "ok", False: "MISSING", None: "unknown"}
Check = tuple[str, bool | None, str]
"""None: this machine cannot say, and the run is not refused for it."""


def dry_run(plans: Sequence[Plan]) -> int:
    """Print what each cell would start, paste-ready, environment included; what the audit says goes to stderr."""
    for text in report.lines(plans):
        print(text, file=sys.stderr)
    for plan in plans:
        for item in plan.cells:
            for part, command in starts(item).items():
                print(f"# {plan.study.study}/{item.cell.name}: {part}\n{command.shell()}")
    names = [item.cell.name for plan in plans for item in plan.cells]
    summary.print_line({"cells": [], "decisions": [], "dry_run": names, "findings": report.entries(plans)}, OK)
    return OK


def starts(item: Prepared) -> Mapping[str, Command]:
    """By what each is for."""
    spec, dataset = item.cell.spec, item.data.dataset
    if spec.calibrates:
        return dict(calibration.commands(spec, dataset, Path()).items())
    engine, host, name = engine_of(spec), reached(spec.engine.host), spec.model.name
    port = free_port(host)
    url = spec.engine.url or f"http://{host}:{port}"
    return {
        **({"server": engine.command(spec, port=port, served_name=name)} if engine.started else {}),
        "client": bench_serving.command(spec, url=url, dataset=dataset, served_name=name),
        **engine.lines(spec, url, item.data),
    }


def preflight(plans: Sequence[Plan]) -> int:
    """Print a line per check, then what the audit found; the code of the worst that keeps the plans from running."""
    checks = [check for plan in plans for check in machine_checks(plan)]
    for name, good, detail in checks:
        print(f"{WORDS[good]:8}{name:16}{detail}")
    print(*report.table(plans), sep="\n")
    code = INVALID if any(good is False for _, good, _ in checks) else OK
    if any(map(report.refused, plans)):
        code = CONFIGURATION
    seen = {"preflight": {name: good for name, good, _ in checks}, "findings": report.entries(plans)}
    summary.print_line({"cells": [], "decisions": [], **seen}, code)
    return code


def machine_checks(plan: Plan) -> Iterator[Check]:
    yield "configuration", True, f"{len(plan.cells)} cells: {', '.join(item.cell.name for item in plan.cells)}"
    first = plan.cells[0]
    cores = split_cores(available_cores(), first.cell.spec.engine.cores)
    yield "cores", bool(cores.server), f"server {cores.server}, client {cores.client}"
    yield _memory(first)
    free = shutil.disk_usage(Path(plan.study.output_dir)).free / 2**30
    yield "disk", free >= MIN_FREE_DISK_GIB, f"{free:.1f} GiB free in {plan.study.output_dir}"
    yield _lock(plan)
    one_minute = load_average()[0]
    yield "load", one_minute < len(available_cores()), f"load average {one_minute:.2f}"
    if first.cell.spec.engine.device != "cpu":
        yield _gpu(first.cell.spec.engine.gpu)
    yield _tracking(plan)


def _gpu(declared: str | None) -> Check:
    names = ", ".join(gpu["name"] for gpu in gpus())
    found = names or "nvidia-smi reports none"
    if declared:
        return "gpu", None, f"engine.gpu={declared} is another machine's and taken for granted; here {found}"
    return "gpu", bool(names), found


def _memory(item: Prepared) -> Check:
    spec = item.cell.spec
    if not Path(spec.model.path).is_dir():
        return "memory", None, f"{spec.model.path} is not on this machine's disk"
    available = drawn.available_bytes()
    if spec.model.weights == "drawn":
        size = drawn.machine_bytes(spec)
        detail = f"{available / 2**30:.1f} GiB available for {size / 2**30:.2f} GiB of drawn weights"
        if spec.engine.device != "cpu":
            detail = f"{drawn.rank_bytes(spec) / 2**30:.2f} GiB of weights are drawn on each device, none of them here"
        return "memory", available > size, detail
    size = sum(file.stat().st_size for file in Path(spec.model.path).glob("*.safetensors"))
    detail = f"{available / 2**30:.1f} GiB available for a checkpoint of {size / 2**30:.2f} GiB"
    return "memory", available > MEMORY_FACTOR * size, detail


def _lock(plan: Plan) -> Check:
    file = lock_file(plan.study.machine.lock)
    return ("lock", True, f"{file} is free") if is_free(file) else ("lock", False, f"another measurement holds {file}")


def _tracking(plan: Plan) -> Check:
    tracking = plan.study.tracking
    if not tracking.enabled:
        return "tracking", True, "switched off"
    try:
        return "tracking", True, look(Path(plan.study.output_dir), tracking.uri)
    except ConfigError as error:
        return "tracking", False, str(error)
