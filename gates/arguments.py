"""The command line of the gates: a call as one value, and the cell that it speaks of.

The surprise: a declaration has options of its own beside Hydra's overrides, because a reason is a sentence, and a
sentence in Hydra's grammar needs more quoting than a CI file should have to hold.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException

from experiments import composition, schema
from experiments.checks import checked
from experiments.child import ROOT
from experiments.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.spec import CellSpec, ChangeSpec

ABOUT = "A golden record of a server, and a server held against one."


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """Overrides may stand on both sides of an option, which argparse takes for too many."""
    top = parser()
    options, more = top.parse_known_args(argv)
    if unknown := [word for word in more if word.startswith("-")]:
        top.error(f"unrecognized arguments: {' '.join(unknown)}")
    options.overrides += more
    if options.task:
        options.overrides.append(f"task={options.task}")
    return options


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m gates", description=ABOUT)
    commands = top.add_subparsers(dest="command", required=True)
    taking = commands.add_parser("record", help="write a golden record of a server that passes alone")
    taking.add_argument("--out", type=Path, help="default: where run.py looks for the model's record")
    taking.set_defaults(rounding=None, reason=None, accept_bound=None)
    checking = commands.add_parser("check", help="hold a server against gate.golden, or its model's shipped record")
    declaring = checking.add_argument_group("what the author of a change declares (change.*)")
    declaring.add_argument("--rounding", choices=("preserved", "declared"), help="declared needs --reason")
    declaring.add_argument("--reason", help="why the rounding may differ, in words")
    declaring.add_argument("--accept-bound", type=float, help="drift of accept length that declared rounding may cost")
    for command in (taking, checking):
        command.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="as for run.py: gate.parity_prompts=8")
        command.add_argument("--url", type=address, help="of a running server, which then says itself what it serves")
        command.add_argument(
            "--engine", choices=("attach", "ling", "sglang"), default="attach", help="what --url is vouched to be"
        )
        command.add_argument("--task", choices=("gsm8k", "none"), help="task to run too; its keys are overrides")
        command.add_argument("--junit", type=Path, metavar="FILE.xml", help="write the result as JUnit XML")
        command.add_argument("--summary", type=Path, metavar="FILE.md", help="write it as Markdown, for a reviewer")
    return top


def address(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text} does not begin with http:// or https://")
    return text


def cell_of(options: argparse.Namespace) -> CellSpec:
    """The one cell that run.py would measure, with what is declared of it. Raises ConfigError."""
    cell = composed(options.overrides)
    return replace(cell, change=declared(cell.change, options))


def composed(overrides: Sequence[str]) -> CellSpec:
    schema.register()
    try:
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            config = compose("config", [*overrides])
    except HydraException as error:
        raise ConfigError("overrides", str(error)) from error
    if composition.override_lists(config):
        raise ConfigError("cells", "names several cells; a golden record is of one")
    return checked(composition.convert(config).cell)


def declared(change: ChangeSpec, options: argparse.Namespace) -> ChangeSpec:
    bound = options.accept_bound
    if bound is not None and (options.rounding or change.rounding) != "declared":
        raise ConfigError("--accept-bound", "belongs to --rounding declared; any other change is held to 0.05")
    if bound is not None and not 0 <= bound < float("inf"):
        raise ConfigError("--accept-bound", f"{bound} is no bound; allowed: 0 and more")
    return replace(
        change,
        rounding=options.rounding or change.rounding,
        reason=options.reason or change.reason,
        accept_bound=change.accept_bound if bound is None else bound,
    )
