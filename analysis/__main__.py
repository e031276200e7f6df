"""`python -m analysis compare PATH`: what the records of an output directory, or of one study in it, say.

`decisions PATH` is the ledger of what was decided and why, `report PATH` puts everything on one page of HTML,
`breakeven PATH` says which draft depth pays, and `sync PATH` files the records where MLflow lacks them. The surprise:
all exit 0 whatever the verdicts are. Reading a reject is not failing; `run.py` is what exits with it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from analysis import decisions
from analysis.compare import compare
from analysis.dossier import studies
from analysis.ledger import lines
from analysis.records import RecordError, load
from analysis.render import to_csv, to_json, to_table
from experiments import terminal
from experiments.errors import ConfigError
from experiments.secrets import masked

CONFIGURATION = 2
WIDTH = 180
"""Of a table that goes to no terminal."""


def main(argv: list[str] | None = None) -> int:
    options = parser().parse_args(argv)
    try:
        COMMANDS[options.command](options)
    except (RecordError, ConfigError) as error:
        print(f"error: {error}", file=sys.stderr)
        return CONFIGURATION
    return 0


def show_sync(options: argparse.Namespace) -> None:
    from analysis.sync import sync, told  # noqa: PLC0415 - tables need no tracking store

    print(*told(sync(options.path, options.uri)), sep="\n")


def show_comparison(options: argparse.Namespace) -> None:
    comparison = compare(load(options.path, options.study))
    match options.format:
        case "table":
            to_table(comparison, Console(width=options.width or (None if sys.stdout.isatty() else WIDTH)))
        case "csv":
            sys.stdout.write(to_csv(comparison))
        case "json":
            sys.stdout.write(to_json(comparison))


def show_decisions(options: argparse.Namespace) -> None:
    found = [line for study in studies(options.path, options.study) for line in lines(study)]
    match options.format:
        case "table":
            decisions.to_table(found, Console(width=options.width or (None if sys.stdout.isatty() else WIDTH)))
        case "csv":
            sys.stdout.write(decisions.to_csv(found))
        case "json":
            sys.stdout.write(decisions.to_json(found))


def write_report(options: argparse.Namespace) -> None:
    from analysis.report.page import page  # noqa: PLC0415 - nor the page's makers

    out = options.out or options.path / "report.html"
    out.write_text(masked(page(studies(options.path, options.study))))
    print(out)


def show_breakeven(options: argparse.Namespace) -> None:
    from analysis import breakeven_text  # noqa: PLC0415 - nor SciPy

    sys.stdout.write(breakeven_text.answer(options))


COMMANDS = {
    "compare": show_comparison,
    "decisions": show_decisions,
    "report": write_report,
    "breakeven": show_breakeven,
    "sync": show_sync,
}


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m analysis", description="Tables from record files.")
    commands = top.add_subparsers(dest="command", required=True)
    add_table(commands.add_parser("compare", help="cells side by side, each with its ratio to the baseline"))
    add_table(commands.add_parser("decisions", help="what was decided, by which rule, on what evidence"))
    page = commands.add_parser("report", help="all of it as one self-contained HTML page")
    page.add_argument("path", type=Path, help="an output directory, or the directory of one study")
    page.add_argument("--study", help="only this study")
    page.add_argument("--out", type=Path, help="the file (default: report.html in the directory)")
    missing = commands.add_parser("sync", help="file in MLflow the records that it lacks; may be called again")
    missing.add_argument("path", type=Path, help="an output directory")
    missing.add_argument(
        "--uri", help="the store that the study was to use (default: the SQLite file in the directory)"
    )
    depths = commands.add_parser("breakeven", help="what each added draft costs and brings, and the depth that pays")
    depths.add_argument("path", type=Path, help="records of a sweep, or a .csv or .json of steps, tokens, accept, tpot")
    depths.add_argument("--study", help="only this study")
    depths.add_argument("--algorithm", help="nextn or dspark (default: the one the sweep has)")
    depths.add_argument("--experts", type=int, help="routed experts of a layer: rows then cost what they must read")
    depths.add_argument("--top-k", type=int, default=8, help="of them chosen by a row (default: 8)")
    depths.add_argument("--factor", type=float, action="append", help="multiply the base by this; may be repeated")
    depths.add_argument("--format", choices=("table", "json"), default="table")
    return top


def add_table(command: argparse.ArgumentParser) -> None:
    command.add_argument("path", type=Path, help="an output directory, or the directory of one study")
    command.add_argument("--study", help="only this study")
    command.add_argument("--format", choices=("table", "csv", "json"), default="table")
    command.add_argument(
        "--width", type=int, help=f"columns of the table (default: the terminal's, or {WIDTH} without one)"
    )


if __name__ == "__main__":
    terminal.guard()
    sys.exit(main())
