"""`python -m gates record|check [OVERRIDE ...]`: a golden record of a server, and a server held against one.

The server is the one that `python run.py` with the same overrides would launch, or with --url one that runs already.
The surprise: exit code and last line (one JSON object) are those of a run, so that a CI step needs nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import traceback
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException

from experiments import composition, schema
from experiments.checks import checked
from experiments.clients.generate import GenerateClient, ProtocolError
from experiments.engine import ROOT
from experiments.errors import CellError, ConfigError, Interrupted
from experiments.interrupts import interruptible
from experiments.server import Server
from gates import attached, golden
from gates.change import ChangeError
from gates.check import against, record
from gates.evidence import Missing
from gates.golden import GoldenError
from gates.hardware import launched_on
from gates.verdict import CONFIGURATION, INVALID, decide, exit_code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from experiments.spec import CellSpec
    from gates.evidence import GateResult
    from gates.hardware import Hardware
    from gates.verdict import Verdict


@dataclass(frozen=True)
class Live:
    """A ready server, and what is known of it."""

    cell: CellSpec
    client: GenerateClient
    hardware: Callable[[], Hardware]


def main(argv: Sequence[str] | None = None) -> int:
    options = parsed(argv)
    try:
        with interruptible():
            return run_record(options) if options.command == "record" else run_check(options)
    except (ConfigError, ChangeError, GoldenError) as error:
        return failed(CONFIGURATION, str(error))
    except CellError as error:
        return failed(INVALID, f"{error}\n{error.log_tail}")
    except (ProtocolError, Interrupted, OSError) as error:
        return failed(INVALID, str(error))
    except Exception as error:  # noqa: BLE001 - Python's own code for it is 1, which says that a server was rejected
        traceback.print_exc()
        return failed(INVALID, f"a fault of this program: {error!r}")


def run_record(options: argparse.Namespace) -> int:
    cell = composed(options.overrides)
    if options.url is None:
        destination(options, cell)  # found before a launch
    with live(cell, options) as server:
        file = destination(options, server.cell)
        gates, evidence = record(server.cell, server.client)
        verdict = decide(None, gates)
        if verdict.verdict == "baseline":
            golden.write(file, golden.taken(server.cell, server.hardware(), evidence))
            print(f"recorded {file}")
    return report(verdict, gates)


def run_check(options: argparse.Namespace) -> int:
    cell = composed(options.overrides)
    if options.url is None:
        found(cell)  # a record that does not fit costs no launch
    with live(cell, options) as server:
        reference = found(server.cell)
        gates, _ = against(reference, server.cell, server.client, accept=None, task=None, hardware=server.hardware)
    return report(decide(reference.change, gates, golden=reference.golden.model), gates)


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


def composed(overrides: Sequence[str]) -> CellSpec:
    """The one cell that run.py would measure. Raises ConfigError."""
    schema.register()
    try:
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            config = compose("config", [*overrides])
    except HydraException as error:
        raise ConfigError("overrides", str(error)) from error
    if config.cells:
        raise ConfigError("cells", "names several cells; a golden record is of one")
    return checked(composition.convert(config).cell)


@contextmanager
def live(cell: CellSpec, options: argparse.Namespace) -> Iterator[Live]:
    """Raises CellError for a server that does not start, ProtocolError for one that does not say what it is."""
    if options.url:
        with GenerateClient(options.url) as client:
            cell = attached.described(client, cell, options.engine)
            yield Live(cell, client, partial(attached.hardware, options.url, cell))
    else:
        with tempfile.TemporaryDirectory() as logs, Server(cell, log=Path(logs) / "server.log") as server:
            server.wait_ready(cell.engine.ready_timeout_s)
            yield Live(cell, server.client, partial(launched_on, cell))


def report(verdict: Verdict, gates: Sequence[GateResult]) -> int:
    code = exit_code([verdict])
    for gate in gates:
        print(f"{gate.name:16} {gate.status:15} {'required' if gate.required else '':9} {gate.reason}")
    print(f"{verdict.verdict or verdict.status}: {verdict.reason}")
    results = {gate.name: {"status": gate.status, "required": gate.required, "reason": gate.reason} for gate in gates}
    print(json.dumps(asdict(verdict) | {"gates": results, "exit": code}))
    return code


def failed(code: int, message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    print(json.dumps({"status": "invalid", "verdict": None, "reason": message, "gates": {}, "exit": code}))
    return code


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """Overrides may stand on both sides of an option, which argparse takes for too many."""
    top = parser()
    options, more = top.parse_known_args(argv)
    if unknown := [word for word in more if word.startswith("-")]:
        top.error(f"unrecognized arguments: {' '.join(unknown)}")
    options.overrides += more
    return options


def address(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text} does not begin with http:// or https://")
    return text


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m gates", description=(__doc__ or "").partition("\n\n")[2])
    commands = top.add_subparsers(dest="command", required=True)
    taking = commands.add_parser("record", help="write a golden record of a server that passes alone")
    taking.add_argument("--out", type=Path, help="default: where run.py looks for the model's record")
    checking = commands.add_parser("check", help="hold a server against gate.golden, or its model's shipped record")
    for command in (taking, checking):
        command.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="as for run.py: gate.parity_prompts=8")
        command.add_argument("--url", type=address, help="of a running server, which then says itself what it serves")
        command.add_argument(
            "--engine", choices=("attach", "ling", "sglang"), default="attach", help="what --url is vouched to be"
        )
    return top


if __name__ == "__main__":
    sys.exit(main())
