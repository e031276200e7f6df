"""Flags made from a frozen dataclass."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pytest

from ling_runtime.config import ConfigError
from ling_runtime.training.dspark.options import parse


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Weights of the loss."""

    length: Annotated[float, "weight of the length"] = 0.0


@dataclass(frozen=True, kw_only=True)
class Demo:
    out: Annotated[Path, "where to write"]
    mode: Annotated[Literal["fast", "slow"], "how"] = "fast"
    layers: Annotated[tuple[int, ...], "which"] = (1, 4)
    seconds: Annotated[float | None, "stop after 100 % of them"] = None
    verbose: Annotated[bool, "say more"] = False
    loss: Loss = field(default_factory=Loss)

    def __post_init__(self) -> None:
        if self.seconds is not None and self.seconds <= 0:
            raise ConfigError(f"seconds={self.seconds}: must be above 0")


def demo(*arguments: str) -> Demo:
    return parse(Demo, arguments, prog="demo", description="A demo.")


def test_every_field_has_a_flag_and_a_default() -> None:
    assert demo("--out", "x") == Demo(out=Path("x"))
    flags = "--out x --mode slow --layers 2 3 --seconds 1.5 --verbose --length 0.5".split()
    expected = Demo(out=Path("x"), mode="slow", layers=(2, 3), seconds=1.5, verbose=True, loss=Loss(length=0.5))
    assert demo(*flags) == expected


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "--out"),
        (("--out", "x", "--mode", "slower"), "--mode.*'slower'.*fast.*slow"),
        (("--out", "x", "--seconds", "0"), "seconds=0.0: must be above 0"),
        (("--out", "x", "--layer", "3"), "--layer"),
    ],
)
def test_a_wrong_flag_is_named_with_what_is_allowed(
    flags: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        demo(*flags)
    assert re.search(said, capsys.readouterr().err)


def test_help_shows_text_values_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        demo("--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert "--mode {fast,slow} how (default: fast)" in shown
    assert "Weights of the loss." in shown
    assert "stop after 100 % of them" in shown
