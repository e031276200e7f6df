"""When the server replays its decode steps: on a CUDA device, unless a flag or the algorithm stands against it."""

from __future__ import annotations

import pytest
import torch

from ling_runtime.arguments import parse
from ling_runtime.config import ConfigError
from ling_runtime.server import load, replayed


def asked(text: str) -> bool:
    return replayed(parse(["--model-path", "somewhere", *text.split()]))


def test_a_cpu_and_the_flag_mean_eager_steps() -> None:
    assert not asked("")
    assert not asked("--device cuda --disable-cuda-graph")


def test_dspark_is_eager_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    block = "--speculative-algorithm DSPARK --speculative-draft-model-path elsewhere"
    assert not asked(f"--device cuda {block}")
    assert "no graphs for DSPARK yet" in caplog.text


@pytest.mark.skipif(torch.cuda.is_available(), reason="only a machine without a card lacks one")
def test_a_missing_device_is_an_error_that_names_the_way_out() -> None:
    with pytest.raises(ConfigError, match="--disable-cuda-graph"):
        asked("--device cuda")


def test_simulated_acceptance_needs_graphs() -> None:
    flags = ["--model-path", "somewhere", "--speculative-algorithm", "NEXTN"]
    with pytest.raises(ConfigError, match="SGLANG_SIMULATE_ACC_LEN: only where steps are CUDA graphs"):
        load(parse(flags, {"SGLANG_SIMULATE_ACC_LEN": "2.5"}))


@pytest.mark.parametrize("flags", ["", "--device cuda --disable-cuda-graph"])
def test_a_mode_of_launch_needs_graphs(flags: str) -> None:
    with pytest.raises(ConfigError, match="--pdl off: only where steps are CUDA graphs"):
        parse(["--model-path", "somewhere", "--pdl", "off", *flags.split()], {})
