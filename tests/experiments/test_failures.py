"""Limits, signs of memory that ran out, and the class that a failure gets, each by itself."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest

from experiments import memory
from experiments.attempt import recorded
from experiments.clients.generate import ProtocolError
from experiments.cluster.fate import CLASSES
from experiments.errors import MEANING, CellError, CleanupError, FailureClass, Interrupted, PhaseTimeout
from experiments.failure import classify, failed
from experiments.interrupts import interruptible, shielded
from experiments.limits import KEYS, within
from experiments.progress import Stages
from experiments.record import FILE

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]


def subclasses(kind: type) -> Iterator[type]:
    for one in kind.__subclasses__():
        yield one
        yield from subclasses(one)


def test_the_set_of_classes_is_closed_explained_and_used() -> None:
    assert tuple(MEANING) == get_args(FailureClass)
    raised = {one.class_ for one in subclasses(CellError) if one.__module__ == "experiments.errors"}
    assert raised | {"unfinished", "interrupted", "program", *CLASSES.values()} == set(MEANING)
    page = (ROOT / "docs/failures.md").read_text()
    assert all(f"| `{class_}` |" in page for class_ in MEANING)
    assert all(f"| {phase} | `{key}` |" in page for phase, key in KEYS.items())


def test_a_signal_ends_the_run_also_where_the_clean_up_behind_it_fails(tmp_path: Path) -> None:
    def work() -> dict[str, Any]:
        try:
            raise Interrupted(signal.SIGTERM)
        finally:
            raise CleanupError("processes stayed")

    with pytest.raises(Interrupted):
        recorded(tmp_path / FILE, {"schema": 1, "name": "cell"}, work, Stages(1))
    assert json.loads((tmp_path / FILE).read_text())["failure"]["class"] == "cleanup"


def test_a_limit_ends_what_waits_and_names_its_key() -> None:
    begun = time.monotonic()
    with (
        pytest.raises(PhaseTimeout, match=r"gates did not end within 0\.1 s \(gate\.timeout_s\)"),
        within("gates", 0.1),
    ):
        time.sleep(5.0)
    assert time.monotonic() - begun < 1.0


def test_nobody_on_the_way_takes_a_limit_for_a_failure_of_its_own() -> None:
    swallowed = []

    def a_gate() -> None:
        try:
            time.sleep(5.0)
        except Exception as error:  # noqa: BLE001
            swallowed.append(error)

    with pytest.raises(PhaseTimeout), within("task", 0.05):
        a_gate()
    assert swallowed == []


def test_a_phase_in_time_leaves_no_alarm_and_errors_pass() -> None:
    with within("task", 0.05):
        pass
    with pytest.raises(KeyError), within("task", 0.05):
        raise KeyError("own")
    time.sleep(0.1)


def test_somebody_else_s_alarm_goes_on() -> None:
    rung = []
    handler = signal.signal(signal.SIGALRM, lambda *_: rung.append(time.monotonic()))
    before = signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with within("task", 5.0):
            time.sleep(0.05)
        time.sleep(0.3)
        assert len(rung) == 1
    finally:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *before)


def test_a_signal_ends_the_limit_too_and_waits_for_what_is_shielded() -> None:
    done = []

    def write_and_go_on() -> None:
        with shielded():
            signal.raise_signal(signal.SIGTERM)
            done.append("whole")
        done.append("not reached")

    try:
        with pytest.raises(Interrupted), interruptible(), within("task", 5.0):
            write_and_go_on()
        assert done == ["whole"]
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN, "the clean-up is not disturbed"
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139 GiB",
        "torch.cuda.OutOfMemoryError: CUDA out of memory.",
        "RuntimeError: CUDA error: out of memory",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory: you tried to",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "MemoryError",
    ],
)
def test_words_that_say_memory_ran_out(line: str) -> None:
    assert memory.exhausted(f"Loading weights\n{line}\n  File x\nKilled\n") == line


@pytest.mark.parametrize("line", ["memory=139 GiB", "max memory: none", "OutOfMemory handling enabled", "Killed", ""])
def test_words_that_do_not(line: str) -> None:
    assert memory.exhausted(line) is None


@pytest.mark.process
def test_torch_s_own_message_is_known() -> None:
    """As the installed version words it, and not as we remember it."""
    code = "import torch; torch.empty(2**55, dtype=torch.uint8)"
    log = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr
    assert memory.exhausted(log) is not None, log


@pytest.mark.parametrize(
    ("code", "kills", "found"), [(-9, 1, True), (137, 1, True), (1, 1, True), (-9, 0, False), (0, 1, False)]
)
def test_a_kill_is_the_kernel_s_only_if_it_counted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kills: int, *, found: bool
) -> None:
    monkeypatch.setattr(memory, "STATISTICS", tmp_path / "vmstat")
    (tmp_path / "vmstat").write_text(f"nr_free_pages 5\noom_kill {3 + kills}\n")
    assert (memory.killed_by_kernel(code, 3) is not None) == found


@pytest.mark.parametrize(
    ("error", "class_"),
    [
        (ProtocolError("HTTP 500"), "protocol"),
        (Interrupted(signal.SIGHUP), "interrupted"),
        (OSError(errno.ENOSPC, "No space left on device"), "storage"),
        (FileNotFoundError(errno.ENOENT, "no such file"), "program"),
        (KeyError("metrics"), "program"),
    ],
)
def test_classes_of_what_is_raised(tmp_path: Path, error: BaseException, class_: str) -> None:
    assert classify(error) == class_
    part = failed(error, "bench", tmp_path)
    assert part["failure"]["class"] == class_
    assert part["reason"].startswith("bench: ")
    if class_ == "program":
        assert type(error).__name__ in part["failure"]["log_tail"], "the traceback"


def test_what_fails_on_a_full_disk_is_the_disk_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 100})())
    part = failed(ProtocolError("HTTP 500"), "task", tmp_path)["failure"]
    assert (part["class"], part["message"]) == ("storage", f"100 bytes are free in {tmp_path}: HTTP 500")
    assert failed(Interrupted(signal.SIGTERM), "task", tmp_path)["failure"]["class"] == "interrupted"
