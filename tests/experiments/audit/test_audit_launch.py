"""A command line in pieces, and what a machine adds to it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from experiments.audit.audit import launch_of
from experiments.audit.launch import written_flags
from experiments.command import Command
from tests.experiments.audit.conftest import DRAFT, LING

if TYPE_CHECKING:
    from collections.abc import Callable

    from experiments.audit.launch import Launch

PROGRAM = (sys.executable, "-m", "sglang.launch_server")


def test_flags_are_those_behind_the_module_with_their_values() -> None:
    line = (
        "numactl",
        "--cpunodebind=0",
        "python3",
        "-m",
        "sglang.launch_server",
        "--tp-size=4",
        "--a",
        "1",
        "2",
        "--b",
    )
    assert written_flags(line) == (("--tp-size", ("4",)), ("--a", ("1", "2")), ("--b", ()))


def test_a_launch_is_read_with_models_gpus_and_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"name": "NVIDIA B200", "memory.total": "183359"}
    monkeypatch.setattr("experiments.environment.capture", lambda: {"gpus": [row] * 4})
    monkeypatch.setenv("SGLANG_HOST_IP", "::1")
    line = (*PROGRAM, "--model-path", LING, "--speculative-draft-model-path", DRAFT)
    seen = launch_of(Command(line, {"SGLANG_A": "1"}), None)
    assert seen.gpus is not None
    assert (seen.gpus.count, seen.gpus.blackwell, seen.gpus.declared) == (4, True, False)
    assert seen.target is not None
    assert seen.draft is not None
    assert (seen.target.name, seen.draft.block_size) == (LING, 8)
    assert seen.inherited["SGLANG_HOST_IP"] == "::1"
    assert "SGLANG_A" not in seen.inherited
    declared = launch_of(Command(line), "2 x H200").gpus
    assert str(declared) == "2 x H200 (declared)"
    assert launch_of(Command((*line, "--device", "cpu")), None).gpus is None


@pytest.mark.parametrize(
    ("line", "rows"),
    [
        ("", 1),
        ("--speculative-algorithm NEXTN", 4),
        ("--speculative-algorithm nextn --speculative-num-steps 5 --speculative-num-draft-tokens 9", 6),
        ("--speculative-algorithm EAGLE3 --speculative-eagle-topk 2 --speculative-num-draft-tokens 9", 9),
        ("--speculative-algorithm NGRAM --speculative-num-draft-tokens 12", 12),
        ("--speculative-algorithm DSPARK", None),
        ("--speculative-algorithm DSPARK --speculative-num-draft-tokens 5", 5),
        (f"--speculative-algorithm DSPARK --speculative-draft-model-path {DRAFT}", 9),
        (f"--speculative-algorithm DSPARK --speculative-draft-model-path {DRAFT} --speculative-dspark-block-size 4", 5),
    ],
)
def test_the_window_is_the_one_that_sglang_resolves(launch: Callable[..., Launch], line: str, rows: int | None) -> None:
    assert launch(line).window == rows
