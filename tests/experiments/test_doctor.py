"""Doctor: a whole machine passes, a bare Python is told what it lacks and how to get it."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import venv
from typing import TYPE_CHECKING, Any

import pytest

from experiments import doctor
from tests.experiments.driver import FAKE_CLIENT, ROOT, driver_env

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


def asked(python: str, **env: str) -> tuple[int, dict[str, dict[str, Any]]]:
    command = [python, "-m", "experiments.doctor", "--json"]
    done = subprocess.run(command, cwd=ROOT, env=driver_env(**env), capture_output=True, text=True)
    shown = json.loads(done.stdout)
    assert shown["exit"] == done.returncode
    return done.returncode, {check["name"]: check for check in shown["checks"]}


def test_this_machine_runs_the_main_job() -> None:
    code, checks = asked(sys.executable, PYTHONPATH=str(FAKE_CLIENT))
    assert code == 0, checks
    assert checks["torch"]["detail"][0].isdigit()
    assert {
        "python",
        "cuda",
        "mlflow",
        "load client",
        "cores",
        "memory",
        "disk",
        "lock",
        "slurm",
        "git",
    } <= checks.keys()
    assert all(check["remedy"] for check in checks.values() if not check["ok"])


def test_a_bare_python_is_told_what_it_lacks(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", symlinks=True)
    code, checks = asked(str(tmp_path / "bare/bin/python"), PYTHONPATH="")
    assert code == 3
    lacking = {name for name, check in checks.items() if check["needed"] and not check["ok"]}
    assert {"torch", "hydra-core", "mlflow", "load client"} <= lacking
    assert checks["torch"]["remedy"] == "make install"
    assert "ModuleNotFoundError" in checks["load client"]["detail"]
    assert checks["python"]["ok"]


def test_a_held_lock_is_told_and_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "lock_file", lambda _: tmp_path / "lock")
    assert doctor.lock().ok
    with (tmp_path / "lock").open("w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        finding = doctor.lock()
    assert (finding.ok, finding.needed) == (False, False)


def test_weights_that_are_a_pointer_are_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    monkeypatch.setattr(doctor, "CHECKPOINT", tmp_path)
    assert not doctor.checkpoint().ok
    assert doctor.checkpoint().needed


def test_slurm_answers_through_sinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for name, answer in (("sbatch", ""), ("sinfo", "gpu up 4")):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {answer}\n")
        (tmp_path / name).chmod(0o755)
    assert doctor.slurm() == doctor.Finding(
        name="slurm", ok=True, detail="gpu up 4", needed=False, remedy=doctor.slurm().remedy
    )
