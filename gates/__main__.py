"""`python -m gates record|check [OVERRIDE ...]`: a golden record of a server, and a server held against one.

The server is the one that `python run.py` with the same overrides would launch, or with --url one that runs already.
The surprise: exit code and last line (one JSON object) are those of a run, so that a CI step needs nothing else.
"""

from __future__ import annotations

import sys
import tempfile
import time
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from experiments import terminal
from experiments.clients.generate import GenerateClient, ProtocolError
from experiments.errors import CellError, ConfigError, Interrupted
from experiments.interrupts import interruptible
from experiments.running import running
from gates import attached, golden, questions, reports
from gates.arguments import cell_of, parsed
from gates.change import ChangeError
from gates.check import against, record
from gates.evidence import Missing
from gates.golden import GoldenError
from gates.outcome import Compared, Outcome, judged
from gates.verdict import CONFIGURATION, INVALID, decide

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from experiments.engines.interface import EngineClient
    from experiments.spec import CellSpec
    from gates.hardware import Hardware


@dataclass(frozen=True)
class Live:
    """A ready server, and what is known of it."""

    cell: CellSpec
    client: EngineClient
    hardware: Callable[[], Hardware]


def main(argv: Sequence[str] | None = None) -> int:
    options = parsed(argv)
    outcome = attempt(lambda: reported(options))
    reports.say(outcome)
    return outcome.exit


def reported(options: argparse.Namespace) -> Outcome:
    """The call and its files. Raises for files that cannot be written; what else goes wrong is in them."""
    files, started, begun = reports.wanted(options), datetime.now(UTC), time.perf_counter()
    files.check()
    outcome = attempt(lambda: run_record(options) if options.command == "record" else run_check(options))
    reports.write(outcome, files, options, started=started, seconds=time.perf_counter() - begun)
    return outcome


def attempt(run: Callable[[], Outcome]) -> Outcome:
    """What a call came to, whatever became of it."""
    try:
        with interruptible():
            return run()
    except (ConfigError, ChangeError, GoldenError) as error:
        return Outcome(exit=CONFIGURATION, reason=str(error))
    except CellError as error:
        return Outcome(exit=INVALID, reason=f"{error}\n{error.log_tail}")
    except (ProtocolError, Interrupted, OSError) as error:
        return Outcome(exit=INVALID, reason=str(error))
    except Exception as error:  # noqa: BLE001 - Python's own code for it is 1, which says that a server was rejected
        traceback.print_exc()
        return Outcome(exit=INVALID, reason=f"a fault of this program: {error!r}")


def run_record(options: argparse.Namespace) -> Outcome:
    cell = cell_of(options)
    if cell.model.weights == "drawn":
        raise ConfigError("model.weights", "a golden record is of trained weights; allowed: checkpoint")
    if options.url is None:
        destination(options, cell)  # found before a launch
    with live(cell, options) as server:
        file = destination(options, server.cell)
        task = questions.ask(server.client, server.cell.task)
        gates, evidence = record(server.cell, server.client, task)
        verdict = decide(None, gates)
        if verdict.verdict == "baseline":
            golden.write(file, golden.taken(server.cell, server.hardware(), evidence))
            print(f"recorded {file}")
    return judged(verdict, gates)


def run_check(options: argparse.Namespace) -> Outcome:
    cell = cell_of(options)
    if options.url is None:
        found(cell)  # a record that does not fit costs no launch
    with live(cell, options) as server:
        reference = found(server.cell)
        spec = golden.asking(server.cell, reference)
        task = questions.ask(server.client, spec.task)
        gates, evidence = against(reference, spec, server.client, accept=None, task=task, hardware=server.hardware)
    compared = Compared(cell=spec, file=shown(golden.file_of(spec)), reference=reference, live=evidence.probe)
    return judged(decide(reference.change, gates, golden=reference.golden.model), gates, compared)


def destination(options: argparse.Namespace, cell: CellSpec) -> Path:
    """Where the record will be written. Raises GoldenError where that cannot be."""
    file: Path = options.out or golden.DIRECTORY / f"{cell.model.name}.json"
    golden.check_writable(file)
    return file


def found(cell: CellSpec) -> golden.Reference:
    reference = golden.reference(cell)
    if isinstance(reference, Missing):
        raise GoldenError(f"no golden record to check {cell.model.name} against ({reference.reason}); see `record`")
    return reference


def shown(file: Path) -> Path:
    """As a reader in this directory would name it."""
    return file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file


@contextmanager
def live(cell: CellSpec, options: argparse.Namespace) -> Iterator[Live]:
    """Raises CellError for a server that does not start, ProtocolError for one that does not say what it is."""
    if options.url:
        with GenerateClient(options.url) as client:
            cell = attached.described(client, cell, options.engine)
            yield Live(cell, client, partial(attached.hardware, options.url, cell))
    else:
        with tempfile.TemporaryDirectory() as logs, running(cell, log=Path(logs) / "server.log") as server:
            server.wait_ready(cell.engine.ready_timeout_s)
            yield Live(cell, server.client, partial(attached.hardware_of, cell))


if __name__ == "__main__":
    terminal.guard()
    sys.exit(main())
