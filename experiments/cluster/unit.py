"""The cells of one job, measured one after the other as a study on one machine would measure them.

The surprise: what a cell depends on is looked at again here. The identity that a record carries is this node's and not
that of the machine which submitted; a node unlike the baseline's, or code that has changed since, makes a cell invalid
before anything starts, for its gates would judge the machine and not the change.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from experiments import environment
from experiments.cluster import fate, queue
from experiments.cluster.batch import code
from experiments.errors import ConfigError
from experiments.lock import NAME
from experiments.preparation import Plan, golden_of, with_data
from experiments.progress import Stages
from experiments.record import read
from experiments.sharing import Round, Takeover
from experiments.study import Course, Measured, Outcome, obtain
from experiments.tracking import Untracked
from gates.evidence import Missing
from gates.verdict import Verdict, exit_code

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.cluster.batch import Batch, Try
    from experiments.cluster.job import Role
    from experiments.errors import FailureClass
    from experiments.plan import Cell
    from experiments.preparation import Prepared

TEMPORARY = "/tmp"  # noqa: S108 - TMPDIR is often a job's own, and the lock is the whole node's


def run(batch: Batch, names: Sequence[str], role: Role) -> int:
    """What is not settled of `names`; returns the exit code of all of them. Raises Interrupted, StorageError."""
    seen: set[str] = set()
    while name := following(batch, [name for name in names if name not in seen], role):
        seen.add(name)
        measure(batch, batch.cell(name), role)
    records = [last[1] for name in names if (last := batch.last(name))]
    return exit_code(map(Verdict.of, records))


def following(batch: Batch, names: Sequence[str], role: Role) -> str | None:
    """Cells in order until there is a baseline; then those first that were tried least, so that one cell which does
    not fit into a job's time does not keep the others from theirs."""
    waiting = [name for name in names if not batch.settled(name)]
    baseline = batch.baseline()
    if not waiting or (baseline and role == "first"):
        return None
    return min(waiting, key=lambda name: len([*batch.tries(name)])) if baseline else waiting[0]


def measure(batch: Batch, cell: Cell, role: Role) -> None:
    """Leaves a record, unless another call has left one that counts. Raises Interrupted, StorageError."""
    baseline = batch.baseline()
    if problem := unfit(batch, baseline, role):
        fate.refuse(batch, cell, *problem)
        return
    try:
        item = prepared(batch, cell)
        against = Measured(prepared(batch, batch.cell(baseline[1]["name"])), baseline[0]) if baseline else None
    except ConfigError as error:
        fate.refuse(batch, cell, "launch", f"this node cannot run it: {error}")
        return
    machine = replace(batch.study.machine, lock=batch.study.machine.lock or str(Path(TEMPORARY) / NAME))
    plan = Plan(replace(batch.study, machine=machine), (item,))
    takeover = Takeover(study=batch.study, ended={batch.place / cell.name: batch.ended(cell.name)})
    course = Course(plan=plan, round=Round(takeover=takeover, invocation=batch.invocation), tracker=Untracked())
    attempt = obtain(course, item, against, Stages(1), Outcome())
    assert attempt is not None, "waited for"
    if read(attempt)["invocation"]["id"] != batch.invocation.id:
        batch.take_over(cell.name, attempt)


def unfit(batch: Batch, baseline: Try | None, role: Role) -> tuple[FailureClass, str] | None:
    """Why a cell is not measured here."""
    if code() != batch.code:
        return "measurement", "the code has changed since the sweep was submitted"
    if baseline is None:
        return no_baseline(batch) if role == "others" else None
    theirs, ours = baseline[1]["environment"]["hardware"], environment.hardware_class(environment.capture())
    if ours != theirs:
        problem = f"{baseline[1]['name']} was measured on {theirs}, and this node is {ours}: launcher.constraint"
        return "measurement", problem
    return None


def no_baseline(batch: Batch) -> tuple[FailureClass, str]:
    """Its job is over, or this one would not have begun."""
    job = queue.refreshed(batch.directory, queue.read(batch.directory)).jobs[0]
    return fate.CLASSES.get(job.state, "unfinished"), f"no baseline: {job.told()} before it had measured one"


def prepared(batch: Batch, cell: Cell) -> Prepared:
    """Raises ConfigError."""
    golden = golden_of(cell.spec) if len(batch.cells) == 1 else Missing("no baseline")
    return with_data(cell, batch.study, golden)
