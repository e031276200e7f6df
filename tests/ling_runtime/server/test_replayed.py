"""When the server replays its decode steps: on a CUDA device, unless a flag or the algorithm stands against it."""

from __future__ import annotations

import pytest
import torch

from ling_runtime.arguments import own_prefill, parse
from ling_runtime.config import ConfigError
from ling_runtime.executor.switches import DEFAULT, Switches
from ling_runtime.server import load, prompt_variants, rearranged, replayed


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


@pytest.mark.parametrize(
    ("flags", "own", "chunk"),
    [
        ("", False, 512),
        ("--dtype bfloat16", False, 512),
        ("--device cuda", False, 512),
        ("--device cuda --dtype bfloat16", True, 8192),
        ("--device cuda --dtype bfloat16 --chunked-prefill-size 256", True, 256),
        ("--device cuda --dtype bfloat16 --prefill-kernels reference", False, 512),
        ("--device cuda --prefill-kernels triton", True, 8192),
    ],
)
def test_prompts_have_kernels_of_their_own_in_bf16_on_a_card_and_where_asked(flags: str, own: bool, chunk: int) -> None:
    config = parse(["--model-path", "somewhere", *flags.split()])
    assert own_prefill(config.prefill_kernels, config.device, config.dtype) == own
    assert config.chunked_prefill_size == chunk


@pytest.mark.skipif(torch.cuda.is_available(), reason="only a machine without a card lacks one")
def test_kernels_for_prompts_that_cannot_run_are_an_error_that_names_the_way_out() -> None:
    with pytest.raises(ConfigError, match="--prefill-kernels reference"):
        prompt_variants(parse(["--model-path", "somewhere", "--prefill-kernels", "triton"]))
    assert not prompt_variants(parse(["--model-path", "somewhere"]))


def test_simulated_acceptance_needs_graphs() -> None:
    flags = ["--model-path", "somewhere", "--speculative-algorithm", "NEXTN"]
    with pytest.raises(ConfigError, match="SGLANG_SIMULATE_ACC_LEN: only where steps are CUDA graphs"):
        load(parse(flags, {"SGLANG_SIMULATE_ACC_LEN": "2.5"}))


@pytest.mark.parametrize("flags", ["", "--device cuda --disable-cuda-graph"])
def test_a_mode_of_launch_needs_graphs(flags: str) -> None:
    with pytest.raises(ConfigError, match="--pdl off: only where steps are CUDA graphs"):
        parse(["--model-path", "somewhere", "--pdl", "off", *flags.split()], {})


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
