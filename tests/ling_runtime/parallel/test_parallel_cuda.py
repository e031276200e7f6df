"""The miniature on two cards: sums by NCCL inside graphs, run ahead, and the CPU's greedy tokens all the same."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import torch

from ling_runtime.executor.build import load_executor
from tests.ling_runtime.parallel.served import SHIPPED, answered, settings

CARDS = 2
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < CARDS, reason="needs a CUDA device for each rank"),
]
CASES = [("float32", 0), ("float32", 3), ("bfloat16", 0), ("bfloat16", 3)]


@pytest.fixture(scope="module")
def answers() -> dict[tuple[str, int], dict[str, Any]]:
    """Every case, side by side: each compiles for itself."""
    running = {}
    for dtype, steps in CASES:
        command = [sys.executable, "-m", "tests.ling_runtime.parallel.served", "--dtype", dtype, "--steps", str(steps)]
        running[dtype, steps] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    found = {}
    for case, process in running.items():
        out, _ = process.communicate(timeout=240)
        assert process.returncode == 0, case
        found[case] = json.loads(out.splitlines()[-1])
    return found


def test_fp32_gives_the_tokens_of_one_rank_on_the_cpu(answers: dict[tuple[str, int], dict[str, Any]]) -> None:
    want = answered(load_executor(str(SHIPPED), settings(0, "float32", "cpu")))
    assert answers["float32", 0]["tokens"] == want
    assert answers["float32", 3]["tokens"] == want


def test_bf16_drafting_changes_no_byte(answers: dict[tuple[str, int], dict[str, Any]]) -> None:
    assert answers["bfloat16", 3]["tokens"] == answers["bfloat16", 0]["tokens"]


def test_steps_were_replayed_ahead_and_ranks_agree(answers: dict[tuple[str, int], dict[str, Any]]) -> None:
    for answer in answers.values():
        report = answer["report"]
        assert (report["path"], report["overlap"], report["eager"]) == ("graphs", True, 0)
        assert report["replayed"] > 0
        assert len({rank["digest"] for rank in report["ranks"]}) == 1
        assert [rank["rank"] for rank in report["ranks"]] == [0, 1]
