"""The commands as a user types them, in this process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from ling_runtime.training.dspark.__main__ import COMMANDS, main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Command = Callable[..., int]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Command:
    def call(*arguments: object) -> int:
        monkeypatch.setattr("sys.argv", ["dspark", *map(str, arguments)])
        return main()

    return call


@pytest.mark.whole
def test_from_a_target_to_the_score_of_a_draft(
    command: Command, small_target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts, run = tmp_path / "texts", tmp_path / "run"
    rows = ("--rows", 4, "--length", 48, "--batch", 4)
    assert (
        command("generate", "--model", small_target, "--out", texts, *rows, "--greedy-only", "--split", "heldout") == 0
    )
    flags = "--steps 2 --rise 1 --rows 2 --length 48 --anchors 8 --block-size 4 --halves threads".split()
    assert command("train", "--model", small_target, "--trajectories", texts, "--out", run, *flags) == 0
    capsys.readouterr()
    asked = ("--model", small_target, "--draft", run / "draft", "--trajectories", texts, "--length", 48)
    assert command("evaluate", *asked, "--rows", 3) == 0
    score = json.loads(capsys.readouterr().out)
    assert score["rows"] == 3
    assert 1 <= score["accept_length"] <= 5


def test_sampled_sequences_are_no_ruler(
    command: Command, small_target: Path, sequences: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    flags = "--steps 1 --rise 1 --rows 1 --length 64 --block-size 4 --halves threads".split()
    assert command("train", "--model", small_target, "--trajectories", sequences, "--out", run, *flags) == 0
    asked = ("--model", small_target, "--draft", run / "draft", "--trajectories", sequences, "--length", 64)
    assert command("evaluate", *asked) == 2
    assert "allowed: greedy alone" in capsys.readouterr().err


def test_mistakes_are_answered_with_what_is_allowed(
    command: Command,
    small_target: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert command("trane") == 2
    assert "trane: unknown command; allowed: generate, evaluate, train" in capsys.readouterr().err
    assert command("train", "--model", small_target, "--trajectories", tmp_path, "--out", tmp_path / "run") == 2
    assert "no manifest.json there; make them with `generate`" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        command("generate", "--model", small_target, "--out", tmp_path, "--rows", 0)
    assert "rows=0: must be at least 1" in capsys.readouterr().err
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit, match="2"):
        command("generate", "--model", small_target, "--out", tmp_path, "--device", "cuda")
    assert "device=cuda: torch finds no CUDA device; allowed here: cpu" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(command: Command, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        command(name, "--help")
    shown = capsys.readouterr().out
    assert f"python -m ling_runtime.training.dspark {name}" in shown
    assert "(default: " in shown
