"""`python -m experiments.status [OUTPUT_DIR]`: what ran, what is invalid and why, and what is being measured right now.

A row per cell and per decision, for its last attempt, from records and claims alone; no store is asked. The surprise:
"unfinished" in a record means two things, and the claim's lock tells them apart. Held, it is running; free, its driver
was killed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from experiments import claim, terminal
from experiments.cluster import board
from experiments.errors import STOPPED
from experiments.limits import KEYS, Part
from experiments.record import DECISIONS, attempts, number, record_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CONFIGURATION = 2
NO_RECORD = "no record: the driver was killed before it wrote one, or the disk took none"
PLACES = ("*/*", f"*/{DECISIONS}/*")
LAST = "9"
"""Behind every time stamp: what waits for its job."""
LOGS = {"client": "bench.log"}
"""Where a failure's class says that it is not the server's log which tells more."""


@dataclass(frozen=True, kw_only=True)
class Row:
    study: str
    cell: str
    attempt: int
    status: Literal["valid", "invalid", "running", "queued"]
    verdict: str | None
    class_: str | None
    """Of an invalid cell: its failure's class, or the rule that its figures broke."""
    phase: str | None
    """Where it failed, or where it is."""
    reason: str
    started_utc: str
    duration_s: float | None
    stages: dict[str, float]
    """Seconds of each."""
    log: str | None

    @property
    def own_s(self) -> float:
        """What was neither server nor client, nor waiting for another measurement."""
        others = sum(self.stages.get(stage, 0.0) for stage in (*KEYS, "wait for the machine"))
        return (self.duration_s or 0.0) - others


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    if not options.output_dir.is_dir():
        print(f"error: {options.output_dir} is no directory; OUTPUT_DIR is run.py's output_dir", file=sys.stderr)
        return CONFIGURATION
    rows = [row for row in collect(options.output_dir) if options.study in (None, row.study)]
    sys.stdout.write(to_json(rows) if options.json else to_text(rows, times=options.times))
    return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m experiments.status", description="What ran, what failed, what runs.")
    top.add_argument("output_dir", type=Path, nargs="?", default=Path("outputs"))
    top.add_argument("--study", help="only this study")
    top.add_argument("--times", action="store_true", help="where each cell's time went")
    top.add_argument("--json", action="store_true", help="for programs")
    return top


def collect(output: Path) -> list[Row]:
    """By study, in the order in which cells and decisions were begun; what waits for its job comes last."""
    cells = {attempt.parent for place in PLACES for attempt in output.glob(f"{place}/attempt-*")}
    rows = {cell: row(attempts(cell)[-1]) for cell in cells}
    for one in board.cells(output):
        rows[one.cell] = in_queue(one, rows.get(one.cell))
    return sorted(rows.values(), key=lambda one: (one.study, one.started_utc or LAST, one.cell))


def in_queue(one: board.Submitted, last: Row | None) -> Row:
    """A cell whose job is not over; the job is believed, for not every shared disk shows another machine's claims."""
    waiting = Row(
        study=one.cell.parent.name,
        cell=one.cell.name,
        attempt=last.attempt if last else 0,
        status="queued",
        verdict=None,
        class_=None,
        phase=None,
        reason=one.job.told(),
        started_utc=last.started_utc if last else "",
        duration_s=None,
        stages={},
        log=None,
    )
    if last is None or not one.begun:
        return waiting
    if last.status == "invalid" and last.class_ == "unfinished":
        return replace(waiting, status="running", phase=last.phase)
    if last.status == "invalid" and last.class_ in STOPPED:
        return replace(waiting, reason=f"attempt {last.attempt} was stopped ({last.class_}); {one.job.told()}")
    return last


def row(attempt: Path) -> Row:
    record, place = read(attempt), attempt.parents[1]
    decides = place.name == DECISIONS
    held = claim.running(attempt)
    failure = record.get("failure") or {}
    reason = failure.get("message") or record.get("reason") or ""
    class_ = None if record["status"] == "valid" else failure.get("class") or record.get("rule")
    if held:
        reason = f"since {held['since_utc']} on {held['host']}, pid {held['pid']}"
    last = held or claim.abandoned(attempt)
    phase = last["stage"] if last else failure.get("phase")
    log = attempt / (f"{phase}.log" if phase in get_args(Part) else LOGS.get(class_ or "", "server.log"))
    return Row(
        study=place.parent.name if decides else place.name,
        cell=f"decision: {attempt.parent.name}" if decides else attempt.parent.name,
        attempt=number(attempt),
        status="running" if held else record["status"],
        verdict=record.get("verdict"),
        class_=None if held else class_,
        phase=phase,
        reason=reason,
        started_utc=record.get("started_utc") or "",
        duration_s=record.get("duration_s"),
        stages=record.get("stages") or {},
        log=str(log) if log.exists() else None,
    )


def read(attempt: Path) -> dict[str, Any]:
    """A driver killed at the very start has left none, nor has one on a full disk, and an edit by hand may break it."""
    try:
        record: dict[str, Any] = json.loads(record_file(attempt).read_text())
    except FileNotFoundError:
        return {
            "status": "invalid",
            "failure": {"class": "unfinished", "phase": "start", "message": NO_RECORD},
        }
    except json.JSONDecodeError as error:
        return {"status": "invalid", "rule": "unreadable", "reason": f"{record_file(attempt)}: {error}"}
    return record


def to_json(rows: Sequence[Row]) -> str:
    cells = [{key.rstrip("_"): value for key, value in asdict(row).items()} for row in rows]
    return json.dumps({"cells": cells, "counts": Counter(row.status for row in rows)}, indent=2) + "\n"


def to_text(rows: Sequence[Row], *, times: bool = False) -> str:
    return "\n".join([*lines(rows, times=times), summary(rows)]) + "\n"


def lines(rows: Sequence[Row], *, times: bool) -> Iterator[str]:
    width = max((len(row.cell) for row in rows), default=0)
    study = None
    for row in rows:
        if row.study != study:
            study = row.study
            yield study
        what = [row.verdict] if row.verdict else [row.class_, row.phase]
        yield f"  {row.cell:{width}}  {row.status:8}  {': '.join(filter(None, [*what, row.reason]))}"
        below = [row.log] if row.status == "invalid" and row.log else []
        below += [spent(row)] if times and row.duration_s is not None else []
        yield from (f"  {'':{width}}  {'':8}  {line}" for line in below)


def spent(row: Row) -> str:
    parts = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in row.stages.items() if stage in KEYS)
    return f"{row.duration_s:.1f} s: {parts}; orchestrator {row.own_s:.1f}"


def summary(rows: Sequence[Row]) -> str:
    counts = Counter(row.status for row in rows)
    parts = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    return f"{len(rows)} cells: {parts}" if rows else "no cells yet"


if __name__ == "__main__":
    terminal.guard()
    sys.exit(main())
