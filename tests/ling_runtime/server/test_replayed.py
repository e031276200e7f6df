"""When the server replays its decode steps: on a CUDA device, unless a flag or the algorithm stands against it."""

from __future__ import annotations

import pytest
import torch

from ling_runtime.arguments import parse
from ling_runtime.config import ConfigError
from ling_runtime.executor.switches import DEFAULT, Switches
from ling_runtime.server import load, rearranged, replayed


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


def test_flags_rearrange_a_replayed_step() -> None:
    def said(text: str) -> Switches:
        return rearranged(parse(["--model-path", "somewhere", *text.split()]), graphs=True)

    assert said("") == said("--seq-lens-pin") == DEFAULT
    assert said("--fused-verify-extend") == Switches(fused_verify_extend=True)
    assert said("--disable-draft-extend-cuda-graph --glue-graph off") == Switches(extend_graph=False, glue_graph=False)
    assert said("--glue-graph on --result-ring") == Switches(glue_graph=True, result_ring=True)


@pytest.mark.parametrize(
    "flag",
    [
        "--seq-lens-pin",
        "--fused-verify-extend",
        "--disable-draft-extend-cuda-graph",
        "--glue-graph off",
        "--result-ring",
    ],
)
def test_flags_of_replayed_steps_need_them(flag: str) -> None:
    name = flag.split(maxsplit=1)[0]
    with pytest.raises(ConfigError, match=f"{name}: only where steps are CUDA graphs"):
        load(parse(["--model-path", "somewhere", *flag.split()]))
