"""run.py as a child on the fake engine: its command line, its environment, what it said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.claim import running

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
FAKE_ENGINE = ROOT / "tests/fakes/server.py"
FAKE_CLIENT = ROOT / "tests/fakes/load_client"


def fake_command(*faults: str, step_ms: float = 0.2, fault_from: int = 1) -> tuple[str, ...]:
    """`fault_from`: the generation with which faults in answers begin; the first is the one that proves readiness."""
    flags = [part for fault in faults for part in ("--fault", fault)]
    return (sys.executable, str(FAKE_ENGINE), "--step-ms", str(step_ms), "--fault-from", str(fault_from), *flags)


def faulty(directory: Path, faults: dict[int, str], step_ms: float = 0.2) -> tuple[str, ...]:
    """An engine with another fault per number of speculative steps."""
    cases = "".join(f'*"num-steps {steps} "*) set -- "$@" --fault {fault};;\n' for steps, fault in faults.items())
    script = directory / "engine.sh"
    script.write_text(f'#!/bin/sh\ncase "$*" in\n{cases}esac\nexec {" ".join(fake_command(step_ms=step_ms))} "$@"\n')
    script.chmod(0o755)
    return (str(script),)


@dataclass(frozen=True)
class Run:
    code: int
    out: str
    err: str
    directory: Path

    @property
    def line(self) -> dict[str, Any]:
        """The last line of stdout."""
        parsed: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return parsed

    def record(self, cell: int = 0) -> dict[str, Any]:
        read: dict[str, Any] = json.loads(Path(self.line["cells"][cell]["record"]).read_text())
        return read


def small(directory: Path, checkpoint: Path, *overrides: str, engine: tuple[str, ...] | None = None) -> list[str]:
    """run.py's command line on the fake engine, small and untracked unless overridden."""
    defaults = {
        "engine.command": f"[{','.join(engine or fake_command())}]",
        "engine.ready_timeout_s": "10",
        "model.path": str(checkpoint),
        "output_dir": str(directory / "out"),
        "machine.lock": str(directory / "lock"),
        "tracking": "none",
        "workload.num_prompts": "2",
        "workload.output_len": "16",
        "workload.warmup_prompts": "1",
        "workload.num_shots": "1",
        "gate.parity_prompts": "2",
        "gate.parity_tokens": "16",
        "gate.pollution_requests": "2",
    }
    given = {override.partition("=")[0].lstrip("+") for override in overrides}
    kept = [f"{key}={value}" for key, value in defaults.items() if key not in given]
    return [sys.executable, str(ROOT / "run.py"), *kept, *overrides]


def driver_env(**more: str) -> dict[str, str]:
    """With the stand-in for SGLang's client, which takes ten seconds to import."""
    return {**os.environ, "PYTHONPATH": str(FAKE_CLIENT)} | more


def start(command: list[str], directory: Path) -> Run:
    done = subprocess.run(command, env=driver_env(), cwd=directory, capture_output=True, text=True, timeout=200)
    return Run(done.returncode, done.stdout, done.stderr, directory)


def begin(command: list[str], directory: Path, **env: str) -> subprocess.Popen[str]:
    """The same under way, for whoever wants to disturb it."""
    return subprocess.Popen(
        command,
        env=driver_env(**env),
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], directory: Path, timeout_s: float = 60.0) -> Run:
    out, err = process.communicate(timeout=timeout_s)
    return Run(process.returncode, out, err, directory)


def collect(directory: Path, *arguments: str, **env: str) -> Run:
    """The collector on what a driver left there."""
    path = os.pathsep.join([str(ROOT), str(FAKE_CLIENT)])
    command = [sys.executable, "-m", "experiments.collect", str(directory / "out"), *arguments]
    return finish(begin(command, directory, PYTHONPATH=path, **env), directory, 300.0)


def wait_for_stage(process: subprocess.Popen[str], output: Path, stage: str, timeout_s: float = 30.0) -> Path:
    """The attempt that is in this stage now."""
    deadline = time.monotonic() + timeout_s
    while True:
        for attempt in attempts(output):
            if (claim := running(attempt)) and claim["stage"] == stage:
                return attempt
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, f"{stage} never came"
        time.sleep(0.01)


def attempts(output: Path) -> Iterator[Path]:
    return output.glob("*/*/attempt-*")
