"""Measurements of kernels say in one line what this machine lacks, before they build anything."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from tests.experiments.driver import ROOT


@pytest.mark.process
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has what they need")
@pytest.mark.parametrize("program", ["step_bench", "loop_bench", "prefill_bench", "tile_sweep", "prefill_sweep"])
def test_without_a_card_they_end_with_a_line(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"experiments.{program}"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: this measures kernels and needs a CUDA device that torch can use")
    assert "Traceback" not in done.stderr
