"""Status: every cell's last attempt with class, phase and log; what is running; quick with a thousand records."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from experiments.claim import claimed
from experiments.failure import unfinished
from experiments.status import collect, main
from tests.experiments.driver import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VALID = {"status": "valid", "verdict": "keep", "rule": "faster", "reason": "faster: -3 %", "failure": None}
TIMEOUT = {
    "class": "timeout",
    "phase": "gates",
    "message": "gates did not end within 1 s (gate.timeout_s)",
    "log_tail": "",
}
FAILED = {"status": "invalid", "verdict": None, "rule": "infrastructure", "reason": "gates: ...", "failure": TIMEOUT}
LOST = FAILED | {"failure": TIMEOUT | {"class": "client", "phase": "bench", "message": "lost"}}
INACTIVE = {"status": "invalid", "verdict": None, "rule": "inactive", "reason": "a=1 was asked for", "failure": None}
OPEN = FAILED | {"failure": unfinished()}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def attempt(cell: str, number: int, record: dict[str, Any] | str | None, *logs: str, study: str = "s") -> Path:
        directory = tmp_path / "out" / study / cell / f"attempt-{number}"
        directory.mkdir(parents=True)
        for log in logs:
            (directory / log).touch()
        if isinstance(record, dict):
            record = json.dumps({"started_utc": f"2026-01-01T00:00:{len(cell):02}+00:00"} | record)
        if record is not None:
            (directory / "record.json").write_text(record)
        return directory

    return attempt


@pytest.fixture
def output(write: Callable[..., Path], tmp_path: Path) -> Path:
    write("none", 1, VALID, "server.log")
    for number in (2, 9, 10):
        write("nextn-3-4", number, FAILED if number == 10 else VALID, "server.log", "bench.log")
    write("nextn-4-5", 1, LOST, "server.log", "bench.log")
    write("dspark", 1, INACTIVE, "server.log")
    write("killed", 1, OPEN)
    write("at-the-very-start", 1, None)
    write("broken", 1, "{")
    write("other", 1, VALID, study="t")
    copy = tmp_path / "out/mlartifacts/s/0123/artifacts"
    copy.mkdir(parents=True)
    (copy / "record.json").write_text(json.dumps(VALID))
    return tmp_path / "out"


def test_every_cell_s_last_attempt_with_class_phase_and_log(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(output), "--json", "--study", "s"]) == 0
    shown = json.loads(capsys.readouterr().out)
    cells = {cell["cell"]: cell for cell in shown["cells"]}
    assert shown["counts"] == {"valid": 1, "invalid": 6}
    assert cells["none"]["verdict"] == "keep"
    late = cells["nextn-3-4"]
    assert (late["attempt"], late["class"], late["phase"]) == (10, "timeout", "gates")
    assert late["reason"] == TIMEOUT["message"]
    assert late["log"] == str(output / "s/nextn-3-4/attempt-10/server.log")
    assert cells["nextn-4-5"]["log"] == str(output / "s/nextn-4-5/attempt-1/bench.log")
    assert (cells["dspark"]["class"], cells["dspark"]["phase"]) == ("inactive", None)
    assert (cells["killed"]["class"], cells["killed"]["log"]) == ("unfinished", None)
    assert cells["at-the-very-start"]["class"] == "unfinished"
    assert "the disk took none" in cells["at-the-very-start"]["reason"]
    assert (cells["broken"]["class"], "record.json" in cells["broken"]["reason"]) == ("unreadable", True)


def test_text_is_the_same_every_time_and_says_why(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(output)]) == 0
    text = capsys.readouterr().out
    assert main([str(output)]) == 0
    assert capsys.readouterr().out == text
    assert "timeout: gates: gates did not end within 1 s (gate.timeout_s)" in text
    assert str(output / "s/nextn-3-4/attempt-10/server.log") in text
    assert text.splitlines()[-1] == "8 cells: 6 invalid, 2 valid"
    assert [line for line in text.splitlines() if not line.startswith(" ")][:-1] == ["s", "t"]


def test_a_calibration_is_said_without_a_verdict_and_fails_with_its_own_log(
    write: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = {
        "status": "valid",
        "verdict": None,
        "rule": "calibrated",
        "reason": "artifacts are written",
        "failure": None,
    }
    write("dspark-8", 1, done, "collect.log", "fit.log")
    failure = TIMEOUT | {"phase": "fit", "message": "fit did not end within 1 s"}
    failed = write("dspark-16", 1, FAILED | {"failure": failure}, "collect.log", "fit.log")
    assert main([str(tmp_path / "out")]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert "dspark-8   valid     artifacts are written" in lines
    assert str(failed / "fit.log") in lines


def test_times_tell_the_orchestrator_s_share(
    write: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = {"start": 0.25, "wait for the machine": 50.0, "launch": 5.0, "bench": 12.0, "stop": 0.5}
    write("none", 1, VALID | {"duration_s": 67.75, "stages": stages})
    assert main([str(tmp_path / "out"), "--times"]) == 0
    assert "67.8 s: launch 5.0, bench 12.0; orchestrator 0.8" in capsys.readouterr().out


def test_a_claimed_attempt_is_running(write: Callable[..., Path], tmp_path: Path) -> None:
    attempt = write("none", 1, OPEN)
    with claimed(attempt) as claim:
        claim.note("bench")
        (row,) = collect(tmp_path / "out")
        assert (row.status, row.phase, row.class_) == ("running", "bench", None)
        assert "pid" in row.reason
    (row,) = collect(tmp_path / "out")
    assert (row.status, row.class_) == ("invalid", "unfinished")


@pytest.mark.process
def test_a_killed_driver_s_attempt_names_the_stage_it_was_at(write: Callable[..., Path], tmp_path: Path) -> None:
    attempt = write("none", 1, OPEN)
    text = (
        "import os, pathlib, sys\n"
        "from experiments.claim import claimed\n"
        "with claimed(pathlib.Path(sys.argv[1])) as claim:\n"
        "    claim.note('warm-up')\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", text, str(attempt)], cwd=ROOT).returncode == -9
    (row,) = collect(tmp_path / "out")
    assert (row.status, row.class_, row.phase) == ("invalid", "unfinished", "warm-up")
    (attempt / ".running").write_bytes(b"")
    (row,) = collect(tmp_path / "out")
    assert row.phase == "start"


def test_nothing_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == "no cells yet\n"
    assert main([str(tmp_path / "no")]) == 2


@pytest.mark.process
def test_a_thousand_records_take_no_time(write: Callable[..., Path], tmp_path: Path) -> None:
    evidence = {"gates": {"byte_parity": {"evidence": list(range(2000))}}}
    for index in range(1000):
        write(f"cell-{index:04}", 1, VALID | evidence)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "experiments.status", str(tmp_path / "out")]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert shown.splitlines()[-1] == "1000 cells: 1000 valid"
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2.0, "CPU seconds"
