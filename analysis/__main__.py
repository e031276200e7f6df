"""`python -m analysis compare PATH`: what the records of an output directory, or of one study in it, say.

The surprise: it exits 0 whatever the verdicts are. Reading a reject is not failing; `run.py` is what exits with it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from analysis.compare import compare
from analysis.records import RecordError, load
from analysis.render import to_csv, to_json, to_table

CONFIGURATION = 2


def main(argv: list[str] | None = None) -> int:
    options = parser().parse_args(argv)
    try:
        comparison = compare(load(options.path, options.study))
    except RecordError as error:
        print(f"error: {error}", file=sys.stderr)
        return CONFIGURATION
    match options.format:
        case "table":
            to_table(comparison, Console(width=options.width))
        case "csv":
            sys.stdout.write(to_csv(comparison))
        case "json":
            sys.stdout.write(to_json(comparison))
    return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m analysis", description="Tables from record files.")
    commands = top.add_subparsers(dest="command", required=True)
    cells = commands.add_parser("compare", help="cells side by side, each with its ratio to the baseline")
    cells.add_argument("path", type=Path, help="an output directory, or the directory of one study")
    cells.add_argument("--study", help="only this study")
    cells.add_argument("--format", choices=("table", "csv", "json"), default="table")
    cells.add_argument("--width", type=int, help="columns of the table (default: the terminal's)")
    return top


if __name__ == "__main__":
    sys.exit(main())
