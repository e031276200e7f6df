"""`python -m experiments.collect [OUTPUT_DIR]`: finish what a driver began that is gone by now.

Waits for the jobs of every sweep there that nobody has concluded, files records in MLflow and ends as run.py would
have ended: table, JSON line, exit code. The surprise: called again it says the same again, of the newest sweep.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from experiments import terminal
from experiments.errors import ConfigError, Interrupted
from experiments.interrupts import interruptible

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIGURATION, INVALID = 2, 3


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    try:
        with interruptible():
            return collect(options.output_dir, options.study, now=options.now)
    except ConfigError as error:
        print(f"configuration error: {error}", file=sys.stderr)
        return CONFIGURATION
    except Interrupted as interrupt:
        print(f"interrupted by {interrupt}", file=sys.stderr)
        return INVALID


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m experiments.collect", description="Finish a sweep on a cluster.")
    top.add_argument("output_dir", type=Path, nargs="?", default=Path("outputs"))
    top.add_argument("--study", help="only this study")
    top.add_argument("--now", action="store_true", help="show what is there, and wait for nothing")
    return top


def collect(output: Path, study: str | None, *, now: bool) -> int:
    """Raises ConfigError, Interrupted."""
    from experiments.cluster import collector, launch, queue  # noqa: PLC0415 - seconds of imports
    from experiments.cluster.batch import Batch  # noqa: PLC0415
    from experiments.cluster.collector import Collector  # noqa: PLC0415
    from experiments.tracking import Untracked, open_tracker  # noqa: PLC0415

    places = [*output.glob(f"{study or '*'}/{queue.PLACE}/*/{queue.FILE}")]
    batches = sorted((Batch.read(place.parent) for place in places), key=lambda one: one.invocation.started_utc)
    if not batches:
        raise ConfigError("OUTPUT_DIR", f"no sweep went to a cluster from {output}; it is run.py's output_dir")
    with ExitStack() as held:
        unfinished = [batch for batch in batches if not queue.read(batch.directory).concluded]
        collectors = []
        for batch in unfinished or batches[-1:]:
            if not now:
                held.enter_context(collector.lock(batch))
            tracker = Untracked() if now else open_tracker(batch.study, batch.invocation)
            collectors.append(Collector(batch, queue.read(batch.directory), tracker))
        if not now:
            return launch.finish(collectors)
        missing = [name for one in collectors for name in one.batch.names if not one.batch.settled(name)]
        return launch.concluded(collectors, f"still to come: {', '.join(missing)}" if missing else None)


if __name__ == "__main__":
    terminal.guard()
    sys.exit(main())
