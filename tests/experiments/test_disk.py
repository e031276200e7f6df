"""A disk that fills up or takes no writing: whole records or none, a class or a message, and exit 3."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from experiments import attempt
from experiments.claim import ROOM_BYTES, claimed, running
from experiments.errors import StorageError
from experiments.record import new_attempt
from tests.experiments.driver import begin, fake_command, finish, small, start, wait_for_stage

if TYPE_CHECKING:
    from collections.abc import Callable

NO_SPACE = "No space left on device"


def fill(disk: Path) -> Path:
    """A file that takes all the room there is."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as out:
        for size in (2**16, 2**12, 1):
            with contextlib.suppress(OSError):
                while True:
                    out.write(b"x" * size)
    return ballast


def on(disk: Path, checkpoint: Path, *overrides: str, engine: tuple[str, ...] | None = None) -> list[str]:
    return small(disk, checkpoint, f"machine.lock={disk.parent / 'lock'}", *overrides, engine=engine)


@pytest.fixture
def disk(small_disk: Callable[[int], Path]) -> Path:
    return small_disk(2 * 2**20)


@pytest.mark.process
@pytest.mark.parametrize("stage", ["bench", "gates"])
def test_a_disk_that_fills_up_is_recorded_as_that(disk: Path, tmp_path: Path, checkpoint: Path, stage: str) -> None:
    first = start(on(disk, checkpoint), tmp_path)
    assert first.code == 0
    kept = Path(first.line["cells"][0]["record"]).read_bytes()
    process = begin(on(disk, checkpoint, engine=fake_command(step_ms=10.0)), tmp_path)
    attempt = wait_for_stage(process, disk / "out", stage)
    fill(disk)
    run = finish(process, tmp_path)
    assert run.code == 3, run.err
    failure = run.record()["failure"]
    assert failure["class"] == "storage"
    assert "bytes are free in" in failure["message"] or NO_SPACE in failure["message"]
    assert str(attempt) in run.line["cells"][0]["record"]
    assert not list(attempt.glob(".*")), "nothing half-written, no claim"
    assert Path(first.line["cells"][0]["record"]).read_bytes() == kept


@pytest.mark.process
def test_a_run_that_can_record_nothing_ends_with_what_it_has(tmp_path: Path, checkpoint: Path) -> None:
    blocked = tmp_path / "out/single/nextn-2-3"
    blocked.parent.mkdir(parents=True)
    blocked.write_text("a file where the second cell's directory should be")
    run = start(small(tmp_path, checkpoint, "speculation.num_steps=1,2,3", "-m"), tmp_path)
    assert run.code == 3
    assert [(cell["name"], cell["status"]) for cell in run.line["cells"]] == [("nextn-1-2", "valid")]
    assert "stopped, for nothing can be recorded: no directory for an attempt" in run.line["error"]
    assert run.line["error"] in run.err


@pytest.mark.process
def test_a_disk_that_is_full_from_the_start_is_no_traceback(disk: Path, tmp_path: Path, checkpoint: Path) -> None:
    fill(disk)
    run = start(on(disk, checkpoint), tmp_path)
    assert run.code == 2
    assert NO_SPACE in run.line["error"]


def test_a_record_that_does_not_fit_gives_way_to_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync, left = os.fsync, [1]

    def full_once(handle: int) -> None:
        if left:
            left.pop()
            raise OSError(errno.ENOSPC, NO_SPACE)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full_once)
    opened, closing = {"name": "none", "status": "invalid"}, {"status": "valid", "metrics": 1}
    attempt.close(tmp_path / "record.json", opened, closing, {"ended_utc": "now"})
    record: dict[str, Any] = json.loads((tmp_path / "record.json").read_text())
    assert (record["status"], record["failure"]["class"], record["failure"]["phase"]) == (
        "invalid",
        "storage",
        "record",
    )
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


def test_where_nothing_can_be_written_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "cell").write_text("a file where a directory should be")
    with pytest.raises(StorageError, match=r"no directory for an attempt: .*cell"):
        new_attempt(tmp_path / "cell")


def test_a_claim_holds_room_and_its_lock_goes_with_its_holder(tmp_path: Path) -> None:
    with claimed(tmp_path) as claim:
        claim.note("bench")
        seen = running(tmp_path)
        assert seen is not None
        assert (seen["stage"], seen["pid"]) == ("bench", os.getpid())
        assert (tmp_path / ".running").stat().st_blocks * 512 >= ROOM_BYTES
        claim.give_room()
        assert (tmp_path / ".running").stat().st_size < 4096
        assert running(tmp_path) == seen
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".running").write_text("{}")  # as a killed driver leaves it
    assert running(tmp_path) is None


def test_two_drivers_never_share_an_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mkdir = Path.mkdir

    def outrun(self: Path, *args: Any, **options: Any) -> None:
        if self.name == "attempt-1" and not self.exists():
            mkdir(self)
        mkdir(self, *args, **options)

    monkeypatch.setattr(Path, "mkdir", outrun)
    assert new_attempt(tmp_path / "cell").name == "attempt-2"
