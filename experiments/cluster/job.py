"""What submitit calls on the node: signals first, then the cells, and the job's exit code at the end.

The surprise: the order. submitit has bound TERM to nothing by then, so that a cancelled job would run on until Slurm
kills it; and what takes seconds to import comes after our own handlers. From TERM to KILL a job has Slurm's KillWait,
30 s: server and client are gone after ten at most, then the record says why, and only then is Slurm asked to requeue.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from experiments import terminal
from experiments.errors import Interrupted
from experiments.interrupts import ignore, interruptible, shielded

if TYPE_CHECKING:
    from collections.abc import Sequence

Role = Literal["all", "first", "others"]
"""All cells in order; the first that can be trusted and no more; cells that are held against that."""


def work(directory: str, names: Sequence[str], role: Role) -> None:
    """The cells of the batch in `directory`, on this node. Ends the process with their exit code."""
    terminal.guard()
    signal.signal(signal.SIGUSR2, lambda *_: signal.raise_signal(signal.SIGTERM))  # submitit's own word for it
    signal.signal(signal.SIGCONT, signal.SIG_DFL)
    terminal.guard()  # what is said here goes into a file of submitit's
    try:
        with interruptible():
            with shielded():
                from experiments.cluster import unit  # noqa: PLC0415 - see above
                from experiments.cluster.batch import Batch  # noqa: PLC0415
            code = unit.run(Batch.read(Path(directory)), names, role)
    except Interrupted as interrupt:
        from experiments.cluster import fate  # noqa: PLC0415

        code = fate.interrupted(Path(directory), names, interrupt)
    ignore()
    sys.stderr.flush()
    sys.exit(code)
