"""What GPUs did meanwhile and who else was on them, told by a stand-in for nvidia-smi."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from experiments.telemetry import FILE, Telemetry, foreign, remarks, spread

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SAMPLES = """0, 1200, 2619, 40, 310.5, 97, 0x0000000000000001
1, [N/A], 2619, 38, 95.25, 0, 0x0000000000000000
0, 1980, 2619, 44, 689.5, 99, 0x0000000000000004
0, 1800, 2619, 45, 6"""


def test_spread_of_each_gpu_and_what_held_its_clocks_down() -> None:
    first, second = spread(SAMPLES.splitlines())
    assert (first["index"], first["samples"]) == ("0", 2), "a line that was cut is no sample"
    assert first["figures"]["SM clock MHz"] == {"min": 1200, "mean": 1590, "max": 1980}
    assert first["figures"]["power W"] == {"min": 310.5, "mean": 500.0, "max": 689.5}
    assert first["throttled"] == ["power cap in 1 of 2 samples"], "idling is no throttling"
    assert "SM clock MHz" not in second["figures"]
    assert second["throttled"] == []


def test_only_what_does_not_run_below_us_is_foreign() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        gone = max(psutil.pids()) + 100_000
        apps = [{"pid": str(pid), "used_mib": "9", "name": "p"} for pid in (os.getpid(), child.pid, os.getppid(), gone)]
        found = {one["pid"]: one["known_here"] for one in foreign(apps)}
    finally:
        child.communicate(b"\n")
    assert found == {str(os.getppid()): True, str(gone): False}


def test_remarks_name_throttling_and_strangers_but_not_who_cannot_be_told() -> None:
    known = {"pid": "7", "used_mib": "900", "name": "train", "known_here": True}
    seen = {"gpus": spread(SAMPLES.splitlines()), "foreign": [known, known | {"pid": "8", "known_here": False}]}
    assert [*remarks(seen)] == [
        "GPU 0: power cap in 1 of 2 samples",
        "another process was on a GPU: train, pid 7, 900 MiB",
    ]
    assert [*remarks(None)] == []


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """An nvidia-smi that says `apps` when asked for processes and samples until it is stopped."""
    places = tmp_path / "bin"
    places.mkdir()
    monkeypatch.setenv("PATH", str(places), prepend=":")

    def tell(apps: str) -> None:
        lines = SAMPLES.rsplit("\n", 1)[0]
        script = places / "nvidia-smi"
        script.write_text(
            f"#!/bin/sh\ncase $1 in *compute-apps*) echo '{apps}';; *) echo '{lines}'; exec sleep 60;; esac\n"
        )
        script.chmod(0o755)

    return tell


@pytest.mark.process
def test_a_window_leaves_its_samples_beside_the_record_and_no_process(
    tmp_path: Path, stand_in: Callable[[str], None]
) -> None:
    stand_in(f"{os.getppid()}, 900, python, with a comma")
    with Telemetry(tmp_path, ()) as telemetry:
        deadline = time.monotonic() + 20
        while (tmp_path / FILE).read_text().count("\n") < 3:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert telemetry.seen is not None
    assert [gpu["samples"] for gpu in telemetry.seen["gpus"]] == [2, 1]
    assert [app["name"] for app in telemetry.seen["foreign"]] == ["python, with a comma"]
    assert not [child for child in psutil.Process().children(recursive=True) if "sleep" in child.name()]


def test_without_nvidia_smi_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with Telemetry(tmp_path, ()) as telemetry:
        assert list(tmp_path.iterdir()) == []
    assert telemetry.seen is None
