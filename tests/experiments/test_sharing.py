"""Who measures a cell and what is taken over: locks, rounds, and the table of what counts as an outcome."""

from __future__ import annotations

import errno
import fcntl
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from experiments.arguments import spelled
from experiments.claim import claimed
from experiments.errors import ConfigError
from experiments.failure import unfinished
from experiments.record import FILE, write_json
from experiments.sharing import Takeover, ended, joined, turn
from experiments.spec import StudySpec
from tests.experiments.driver import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VALID = {"status": "valid", "failure": None}
FAILED = {"status": "invalid", "failure": {"class": "launch"}}
INACTIVE = {"status": "invalid", "failure": None}
KILLED = {"status": "invalid", "failure": unfinished()}
STOPPED = {"status": "invalid", "failure": {"class": "interrupted"}}


@pytest.fixture
def attempt(tmp_path: Path) -> Callable[..., Path]:
    def make(cell: str, number: int, record: dict[str, Any] | None, **more: Any) -> Path:
        directory = tmp_path / cell / f"attempt-{number}"
        directory.mkdir(parents=True)
        if record:
            write_json(directory / FILE, {"identity": "i", "baseline_identity": None} | record | more)
        return directory

    return make


def resumed(**keys: Any) -> StudySpec:
    return StudySpec(study="s", **({"resume": True} | keys))


def test_a_lock_is_one_driver_s_until_it_ends(tmp_path: Path) -> None:
    told = threading.Event()
    with turn(tmp_path / "cell/.lock") as ours:
        assert ours
        with turn(tmp_path / "cell/.lock") as theirs:
            assert not theirs
        later = threading.Thread(target=lambda: wait(tmp_path / "cell/.lock", told))
        later.start()
        assert told.wait(5.0)
        assert later.is_alive()
    later.join(5.0)
    assert not later.is_alive()


def wait(file: Path, told: threading.Event) -> None:
    with turn(file, told.set) as ours:
        assert ours


def test_a_killed_driver_s_lock_is_free(tmp_path: Path) -> None:
    code = (
        f"from pathlib import Path; from experiments.sharing import turn\nwith turn(Path({str(tmp_path / 'l')!r})):\n"
    )
    code += " print(flush=True); input()"
    command = [sys.executable, "-c", code]
    holder = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"\n"
    with turn(tmp_path / "l") as ours:
        assert not ours
    holder.kill()
    holder.communicate()
    with turn(tmp_path / "l") as ours:
        assert ours


# (record of attempt 1, had it ended before the round began): taken over under retry = invalid, none, all
OUTCOMES = [
    (VALID, True, (True, True, False)),
    (VALID, False, (True, True, True)),
    (FAILED, True, (False, True, False)),
    (FAILED, False, (True, True, True)),
    (INACTIVE, True, (False, True, False)),
    (INACTIVE, False, (True, True, True)),
    (KILLED, True, (False, False, False)),
    (KILLED, False, (False, False, False)),
    (STOPPED, False, (False, False, False)),
    (None, False, (False, False, False)),
]


@pytest.mark.parametrize(("record", "earlier", "counts"), OUTCOMES)
def test_what_counts_as_an_outcome(
    attempt: Callable[..., Path], record: dict[str, Any], earlier: bool, counts: tuple[bool, ...]
) -> None:
    directory = attempt("cell", 1, record).parent
    before = {directory: 1} if earlier else {}
    for retry, taken in zip(("invalid", "none", "all"), counts, strict=True):
        found = Takeover(study=resumed(retry=retry), ended=before).outcome(directory, "i")
        assert (found is not None) == taken, retry
    assert Takeover(study=StudySpec(study="s"), ended=before).outcome(directory, "i") is None, "without resume"


def test_an_outcome_has_the_same_identity_and_baseline(attempt: Callable[..., Path], tmp_path: Path) -> None:
    takeover = Takeover(study=resumed(), ended={})
    first = attempt("cell", 1, VALID, baseline_identity="b")
    attempt("cell", 2, VALID, identity="other", baseline_identity="b")
    attempt("cell", 3, KILLED, baseline_identity="b")
    (attempt("cell", 4, None) / FILE).write_text("{ broken by hand")
    assert takeover.outcome(tmp_path / "cell", "i", "b") == first
    assert takeover.outcome(tmp_path / "cell", "i") is None


def test_what_is_being_measured_has_not_ended(attempt: Callable[..., Path], tmp_path: Path) -> None:
    attempt("cell", 2, FAILED)
    attempt("decisions/cell", 1, FAILED)
    with claimed(attempt("cell", 3, KILLED)):
        assert ended(tmp_path) == {tmp_path / "cell": 2, tmp_path / "decisions/cell": 1}
    assert ended(tmp_path)[tmp_path / "cell"] == 3


def test_drivers_of_one_round_see_the_same(attempt: Callable[..., Path], tmp_path: Path) -> None:
    attempt("cell", 1, FAILED)
    with joined(tmp_path, "p", resumed(), lambda takeover: 7) as first:
        assert (first.invocation.cells, first.takeover.ended) == (7, {tmp_path / "cell": 1})
        attempt("cell", 2, FAILED)
        with joined(tmp_path, "p", resumed(), lambda takeover: 3) as second:
            assert second == first, "a cell that failed in this round is not tried again by whoever comes later"
        with joined(tmp_path, "other cells", resumed(), lambda takeover: 3) as other:
            assert other.invocation.id != first.invocation.id
        with joined(tmp_path, "p", StudySpec(study="s"), lambda takeover: 7) as alone:
            assert alone.invocation.id != first.invocation.id, "without resume nothing is shared"
    with joined(tmp_path, "p", resumed(), lambda takeover: 1) as later:
        assert later.invocation == first.invocation, "the same sweep goes on"
        assert later.takeover.ended == {tmp_path / "cell": 2}
    with joined(tmp_path, "p", resumed(retry="all"), lambda takeover: 7) as again:
        assert again.invocation.id != first.invocation.id


def test_a_file_system_without_locks_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(handle: int, kind: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", none)
    with pytest.raises(ConfigError, match=r"output_dir: drivers cannot .*Function not implemented"):
        joined(tmp_path, "p", resumed(), lambda takeover: 1).__enter__()


def test_retry_may_be_spelled_as_elsewhere() -> None:
    assert spelled(["-m", "--retry", "invalid", "a=1"]) == ["resume=true", "retry=invalid", "a=1", "-m"]
    assert spelled(["a=1", "b=2", "-m", "--retry=none"]) == ["resume=true", "retry=none", "a=1", "b=2", "-m"]
    assert spelled(["--cfg", "job", "--retry"]) == ["resume=true", "retry=", "--cfg", "job"], "is refused by name"
    assert spelled(["a=1", "-m"]) == ["a=1", "-m"]


def test_overrides_may_stand_anywhere() -> None:
    """Hydra takes them in one row, and a value of an option is none of them."""
    assert spelled(["a=1", "-m", "+b=2", "--info", "~c"]) == ["a=1", "+b=2", "~c", "-m", "--info"]
    assert spelled(["--config-dir", "x=y", "a=1", "--cfg=job"]) == ["a=1", "--config-dir", "x=y", "--cfg=job"]
    assert spelled(["a=1", "--config-name"]) == ["a=1", "--config-name"]
