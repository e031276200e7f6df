"""What a call of the command line leaves behind: lines for people, one line for programs, and the files asked for.

The surprise: a place that takes no file is found before a server is started, like any other mistake in a call.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.errors import ConfigError
from experiments.record import write_text
from experiments.secrets import masked
from gates import golden, junit, markdown

if TYPE_CHECKING:
    from argparse import Namespace
    from datetime import datetime

    from gates.outcome import Outcome

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Files that this call is to write."""

    junit: Path | None
    summary: Path | None
    step_summary: Path | None
    """GitHub's page of a step, which is added to and not written over."""

    def check(self) -> None:
        """Raises ConfigError for a place that takes no file."""
        for option, path in (("--junit", self.junit), ("--summary", self.summary), (STEP_SUMMARY, self.step_summary)):
            try:
                if path:
                    golden.check_writable(path)
            except golden.GoldenError as error:
                raise ConfigError(option, str(error)) from error


def wanted(options: Namespace) -> Wanted:
    step = os.environ.get(STEP_SUMMARY)
    return Wanted(junit=options.junit, summary=options.summary, step_summary=Path(step) if step else None)


def say(outcome: Outcome) -> None:
    for gate in outcome.gates:
        print(f"{gate.name:16} {gate.status:15} {'required' if gate.required else '':9} {gate.reason}")
    if outcome.verdict:
        print(f"{outcome.verdict.verdict or outcome.verdict.status}: {outcome.reason}")
    else:
        print(f"error: {outcome.reason}", file=sys.stderr)
    print(json.dumps(outcome.line()))


def write(outcome: Outcome, files: Wanted, options: Namespace, *, started: datetime, seconds: float) -> None:
    page = markdown.page(outcome, options.overrides)
    if files.junit:
        write_text(files.junit, junit.document(outcome, started=started, seconds=seconds))
    if files.summary:
        write_text(files.summary, page)
    if files.step_summary:
        with files.step_summary.open("a", encoding="utf-8") as file:
            file.write(masked(page))
