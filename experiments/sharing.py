"""Several drivers on one sweep: who measures a cell, and which attempts the others take over.

Whoever measures a cell holds the lock in its directory; a driver that finds it held waits, or goes on to a cell that
nobody has. The surprise: there is no list of drivers and no server between them. A lock is the kernel's, which frees
that of a driver that died, and what came of a cell is read from its record, wherever and by whomever it was measured.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import uuid
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from experiments.claim import running
from experiments.errors import STOPPED, ConfigError, StorageError
from experiments.plan import Invocation
from experiments.record import DECISIONS, FILE, attempts, now, number, write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from experiments.spec import StudySpec

LOCK = ".lock"
SWEEPS = ".sweeps"
"""In a study's directory: a file for each of its sweeps, and the locks of those who are at it."""


@contextlib.contextmanager
def turn(file: Path, waiting: Callable[[], None] | None = None) -> Iterator[bool]:
    """The lock of `file`: False at once if another driver has it, unless `waiting` is told and the lock waited for.

    Raises StorageError.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle = opened(file)
        ours = lock(handle, fcntl.LOCK_EX)
    except OSError as error:
        raise StorageError(f"no directory for an attempt: {error}") from error
    try:
        if not ours and waiting:
            waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)
            ours = True
        yield ours
    finally:
        os.close(handle)


def opened(file: Path) -> int:
    """For writing: across NFS nothing else can be locked exclusively."""
    return os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


def lock(handle: int, kind: int) -> bool:
    """Without waiting."""
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@dataclass(frozen=True, kw_only=True)
class Takeover:
    """Which attempts count as a cell's outcome, so that it need not be measured."""

    study: StudySpec
    ended: Mapping[Path, int]
    """By directory: the last attempt that had ended before this round of the sweep began."""

    def outcome(self, directory: Path, identity: str, baseline: str | None = None, file: str = FILE) -> Path | None:
        """The newest that counts, of this identity and judged against the baseline of that one."""
        if not self.study.resume:
            return None
        for attempt in reversed(attempts(directory)):
            record = read_whole(attempt / file)
            same = (record.get("identity"), record.get("baseline_identity")) == (identity, baseline)
            if same and self._counts(record, number(attempt) <= self.ended.get(directory, 0)):
                return attempt
        return None

    def _counts(self, record: Mapping[str, Any], earlier: bool) -> bool:
        retry = self.study.retry if earlier else "none"
        if record["status"] == "valid":
            return retry != "all"
        return retry == "none" and (record["failure"] or {}).get("class") not in STOPPED


def read_whole(file: Path) -> dict[str, Any]:
    """Empty where a driver was killed before it wrote one, or somebody has broken it."""
    try:
        record: dict[str, Any] = json.loads(file.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return record


def ended(study: Path) -> dict[Path, int]:
    """By directory of a cell or a decision: its last attempt that is not being measured right now."""
    last: dict[Path, int] = {}
    for place in ("*", f"{DECISIONS}/*"):
        for attempt in study.glob(f"{place}/attempt-*"):
            if number(attempt) > last.get(attempt.parent, 0) and not running(attempt):
                last[attempt.parent] = number(attempt)
    return last


def at_work(directory: Path) -> str:
    """Who measures a cell, in words."""
    held = [claim for attempt in attempts(directory)[-1:] if (claim := running(attempt))]
    return "pid {pid} on {host}: {stage}".format(**held[0]) if held else "another driver"


@dataclass(frozen=True, kw_only=True)
class Round:
    """A sweep from its first driver's start to its last one's end; all of them see the same."""

    takeover: Takeover
    invocation: Invocation


@contextlib.contextmanager
def joined(directory: Path, identity: str, study: StudySpec, open_: Callable[[Takeover], int]) -> Iterator[Round]:
    """The round of the sweep of this identity: that of the drivers at it, or a new one. Raises ConfigError.

    `open_` says how many cells are yet to be measured. Started again with `resume`, a sweep is still the same call.
    """
    place = directory / SWEEPS / identity
    try:
        with turn(place.with_name(LOCK), waiting=lambda: None):
            drivers = opened(place.with_suffix(".drivers"))
            alone = lock(drivers, fcntl.LOCK_EX)
            round_ = _round(place.with_suffix(".json"), directory, study, open_, alone=alone)
            fcntl.flock(drivers, fcntl.LOCK_SH)
    except (OSError, StorageError) as error:
        raise ConfigError("output_dir", f"drivers cannot keep out of each other's way there: {error}") from error
    try:
        yield round_
    finally:
        os.close(drivers)


def _round(file: Path, directory: Path, study: StudySpec, open_: Callable[[Takeover], int], *, alone: bool) -> Round:
    known = read_whole(file) if study.resume else {}
    if known and not alone:
        before = {directory / name: last for name, last in known["ended"].items()}
        return Round(takeover=Takeover(study=study, ended=before), invocation=Invocation(**known["invocation"]))
    takeover = Takeover(study=study, ended=ended(directory))
    if known and study.retry != "all":
        invocation = Invocation(**known["invocation"])
    else:
        invocation = Invocation(id=uuid.uuid4().hex[:12], cells=open_(takeover), started_utc=now())
    if alone:
        names = {path.relative_to(directory).as_posix(): last for path, last in takeover.ended.items()}
        write_json(file, {"invocation": asdict(invocation), "ended": names})
    return Round(takeover=takeover, invocation=invocation)
