"""run.py on the real server that `make sglang-cpu` installs, or on another Python's; where neither is, tests skip."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from experiments.engines.sglang_cpu import PYTHON, python
from tests.experiments.driver import ROOT

if TYPE_CHECKING:
    from pathlib import Path

TOKENIZER = ROOT / "ling_runtime/checkpoints/ling_tiny"
ENVIRONMENT = {"PYTHONPATH": ""}
"""For a driver: without the stand-in for SGLang's load client."""

needs_it = pytest.mark.skipif(
    not python().is_file(), reason=f"{python()} is missing: `make sglang-cpu`, or {PYTHON} names another Python"
)


def make_model(directory: Path) -> Path:
    """By the environment's own program, as the make target does it."""
    program = [str(python()), "-m", "sglang_cpu_platform.small_model"]
    environment = {**os.environ, "PYTHONPATH": ""}
    subprocess.run([*program, str(directory), "--tokenizer", str(TOKENIZER)], env=environment, check=True, timeout=200)
    return directory


def command(directory: Path, model: Path, *overrides: str) -> list[str]:
    """Unpinned: the server is three processes, and nobody reads its times."""
    paths = (f"model.path={model}", f"output_dir={directory / 'out'}", f"machine.lock={directory / 'lock'}")
    settings = ("machine.pin_cores=false", "engine.ready_timeout_s=1200")
    return [sys.executable, str(ROOT / "run.py"), *paths, *settings, *overrides]
