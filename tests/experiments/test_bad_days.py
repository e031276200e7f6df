"""What goes wrong with a server in each phase: the record names phase and class, and nothing is left running."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from experiments import limits
from experiments.errors import MEANING
from tests.experiments.driver import FAKE_ENGINE, Run, begin, fake_command, finish, small, start, wait_for_stage
from tests.experiments.processes import MARK, marked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.process

KEYS = {phase: key for phase, key in limits.KEYS.items() if not key.startswith("calibration.")}
NUMBER = {"launch": 1, "warm-up": 2, "bench": 3, "task": 5, "gates": 8}
"""The first generation of each phase: one for readiness, one prompt to warm up, two measured, three questions."""


class Case(NamedTuple):
    fault: str
    phase: str
    class_: str
    message: str
    tail: str = ""


STALLS = [Case("stall", phase, "timeout", f"{phase} did not end within 1 s ({key})") for phase, key in KEYS.items()]
CASES = [
    *STALLS,
    Case("trickle", "warm-up", "timeout", "warm-up did not end within 1 s (workload.warmup_timeout_s)"),
    Case("die", "warm-up", "server_died", "the server ended with code -9 while it was in use", "POST /generate"),
    Case("die", "bench", "server_died", "the server ended with code -9 while it was in use", "POST /generate"),
    Case("die", "task", "server_died", "the server ended with code -9 while it was in use", "POST /generate"),
    Case("die", "gates", "server_died", "the server ended with code -9 while it was in use", "POST /generate"),
    Case("errors", "warm-up", "protocol", "POST /generate: HTTP 500", "POST /generate"),
    Case("errors", "bench", "client", "0 of 2 requests completed; first: ", "POST /generate"),
    Case("errors", "task", "protocol", "POST /generate: HTTP 500", "POST /generate"),
    Case("zero_tokens", "bench", "measurement", "asked for 16 tokens, the engine counted 0", "POST /generate"),
    Case("wrong_counts", "bench", "measurement", "asked for 16 tokens, the engine counted 17", "POST /generate"),
    Case("wrong_counts", "task", "protocol", "output_ids but completion_tokens = ", "POST /generate"),
    Case("no_memory_at_start", "launch", "out_of_memory", "before it was ready (code 1): RuntimeError", "DefaultCPU"),
    Case("no_cuda_memory", "bench", "out_of_memory", "torch.OutOfMemoryError: CUDA out of memory", "POST /generate"),
    Case("no_cuda_memory", "gates", "out_of_memory", "torch.OutOfMemoryError: CUDA out of memory", "POST /generate"),
]
LIMITS = [f"{key}={10 if phase == 'launch' else 1}" for phase, key in KEYS.items()]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Run:
    """One cell per case, told apart by its seed."""
    directory = tmp_path_factory.mktemp("bad-days")
    cells = [
        [
            f"engine.random_seed={index}",
            f"engine.command=[{','.join(fake_command(case.fault, fault_from=NUMBER[case.phase]))}]",
            *(["engine.ready_timeout_s=1"] if case.phase == "launch" else []),
        ]
        for index, case in enumerate(CASES)
    ]
    task = ("task=gsm8k", "task.num_questions=3", "task.num_shots=1")
    command = small(directory, checkpoint, *LIMITS, *task, f"cells={cells}".replace("'", '"'))
    os.environ[MARK] = str(directory)
    try:
        return start(command, directory)
    finally:
        del os.environ[MARK]


def test_every_cell_is_a_row_and_nothing_is_left(sweep: Run) -> None:
    assert sweep.code == 3
    assert len(sweep.line["cells"]) == len(CASES)
    assert marked(str(sweep.directory)) == []
    assert not [path for path in (sweep.directory / "out").rglob(".*") if path.parent.name.startswith("attempt")]


@pytest.mark.parametrize("index", range(len(CASES)), ids=[f"{case.fault}-{case.phase}" for case in CASES])
def test_the_failure_is_named(sweep: Run, index: int) -> None:
    case, record = CASES[index], sweep.record(index)
    failure = record["failure"]
    assert (failure["class"], failure["phase"]) == (case.class_, case.phase)
    assert failure["class"] in MEANING
    assert case.message in failure["message"]
    assert case.tail in failure["log_tail"]
    assert failure["log_tail"]
    assert failure["log_tail"] in sweep.err, "the log's end is shown"
    assert (record["status"], record["rule"], record["verdict"]) == ("invalid", "infrastructure", None)
    assert record["stages"][case.phase] < 4.0, "the alarm is heard at once"


@pytest.mark.parametrize("stage", ["bench", "gates"])
def test_a_server_killed_from_outside(tmp_path: Path, checkpoint: Path, stage: str) -> None:
    command = small(tmp_path, checkpoint, engine=fake_command(step_ms=20.0))
    process = begin(command, tmp_path, **{MARK: str(tmp_path)})
    wait_for_stage(process, tmp_path / "out", stage)
    (server,) = [one for one in marked(str(tmp_path)) if str(FAKE_ENGINE) in one.cmdline()[:2]]
    server.kill()
    run = finish(process, tmp_path, 10.0)
    failure = run.record()["failure"]
    assert (run.code, failure["class"], failure["phase"]) == (3, "server_died", stage)
    assert "fake engine ready" in failure["log_tail"]
    assert marked(str(tmp_path)) == []


@pytest.fixture
def tight_memory() -> Iterator[Path]:
    """A control group of 192 MiB; skips where none can be made."""
    group = Path(f"/sys/fs/cgroup/memory/ling-bench-test-{os.getpid()}")
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(192 * 2**20))
    except OSError as error:
        pytest.skip(f"no memory control group: {error}")
    yield group
    group.rmdir()


@pytest.mark.parametrize("shell", [False, True])
def test_the_kernel_s_kill_for_want_of_memory_is_not_taken_for_a_crash(
    run_py: Callable[..., Run], tmp_path: Path, tight_memory: Path, *, shell: bool
) -> None:
    """With a shell in between, which says 137, as well as without one, which is -9."""
    script = tmp_path / "engine.sh"
    program = " ".join(fake_command("eat_memory", fault_from=3))
    run_it = f'{program} "$@"; exit $?' if shell else f'exec {program} "$@"'
    script.write_text(f"#!/bin/sh\necho $$ > {tight_memory}/cgroup.procs\n{run_it}\n")
    script.chmod(0o755)
    failure = run_py(engine=(str(script),)).record()["failure"]
    assert (failure["class"], failure["phase"]) == ("out_of_memory", "bench")
    assert (
        f"(code {137 if shell else -signal.SIGKILL}): the kernel's count of out-of-memory kills rose"
        in failure["message"]
    )


def last_stage(record: dict[str, Any]) -> str:
    return [*record["stages"]][-1]


def test_a_late_server_is_measured(run_py: Callable[..., Run]) -> None:
    run = run_py(engine=fake_command("late"))
    assert run.code == 0, run.err
    assert run.record()["stages"]["launch"] > 0.5
    assert last_stage(run.record()) == "stop"
