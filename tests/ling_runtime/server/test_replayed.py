"""When the server replays its decode steps: on a CUDA device, unless a flag or the algorithm stands against it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ling_runtime.arguments import parse
from ling_runtime.config import ConfigError, ModelConfig
from ling_runtime.executor.graph_settings import GraphSettings
from ling_runtime.executor.switches import Switches
from ling_runtime.server import device_variants, graph_settings, load, prompt_variants, replayed
from ling_runtime.speculative_flags import fitted
from tests.fakes.checkpoint import CONFIG, write_draft

if TYPE_CHECKING:
    from pathlib import Path

    from tests.ling_runtime.conftest import WriteDraft

MLA = {"kv_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12}


def asked(text: str) -> bool:
    return replayed(parse(["--model-path", "somewhere", *text.split()]))


def test_a_cpu_and_the_flag_mean_eager_steps() -> None:
    assert not asked("")
    assert not asked("--device cuda --disable-cuda-graph")


@pytest.mark.parametrize(
    ("draft", "flags", "obstacle"),
    [
        ({}, "--speculative-dspark-verify-mode cap-accept", "cap-accept computes every row"),
        ({"attention_type": "mla", **MLA}, "", "attention_type=mha, and this one's is mla"),
    ],
)
def test_dspark_that_graphs_do_not_hold_is_eager_and_says_so(
    write_draft: WriteDraft, caplog: pytest.LogCaptureFixture, draft: dict[str, Any], flags: str, obstacle: str
) -> None:
    block = f"--speculative-algorithm DSPARK --speculative-draft-model-path {write_draft(**draft)}"
    assert not asked(f"--device cuda {block} {flags}")
    assert obstacle in caplog.text


def test_dspark_is_replayed_where_there_is_a_device(write_draft: WriteDraft, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    block = f"--speculative-algorithm DSPARK --speculative-draft-model-path {write_draft()} --device cuda"
    assert asked(block)
    assert not asked(f"{block} --disable-cuda-graph")


@pytest.mark.parametrize("why", ["", "no nvcc"])
def test_streamed_products_are_the_default_where_they_run_and_else_it_says_why_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    pytest.importorskip("triton")
    from ling_runtime.executor import graphs  # noqa: PLC0415 - it imports Triton
    from ling_runtime.ops.cuda import build  # noqa: PLC0415

    for module in (graphs, build):
        monkeypatch.setattr(module, "obstacle", lambda: why)
    chosen = device_variants(parse(["--model-path", "somewhere", "--device", "cuda", "--kernel", "linear=triton"]))
    assert chosen == graphs.DEVICE_VARIANTS | ({} if why else graphs.STREAMED_VARIANTS | {"linear": "triton"})
    assert ("WARNING" in caplog.text) == bool(why)


@pytest.mark.parametrize(
    ("chosen", "replaced"),
    [
        ("", "linear, kda_window, moe_block"),
        ("linear=triton", "kda_window, moe_block"),
        ("moe=triton", "linear, kda_window"),
        ("linear=triton kda_window=triton moe_block=triton_gate_norm", None),
    ],
    ids=["nothing chosen", "one of them", "one that a default would be fused over", "all of them"],
)
def test_only_a_default_that_gave_way_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, chosen: str, replaced: str | None
) -> None:
    pytest.importorskip("triton")
    from ling_runtime.executor import graphs  # noqa: PLC0415 - it imports Triton
    from ling_runtime.ops.cuda import build  # noqa: PLC0415

    for module in (graphs, build):
        monkeypatch.setattr(module, "obstacle", lambda: "no nvcc")
    flags = [part for one in chosen.split() for part in ("--kernel", one)]
    device_variants(parse(["--model-path", "somewhere", "--device", "cuda", *flags]))
    said = [record.getMessage() for record in caplog.records]
    assert said == ([f"{replaced}: by Triton instead of CUDA C++: no nvcc"] if replaced else [])


@pytest.mark.skipif(torch.cuda.is_available(), reason="only a machine without a card lacks one")
def test_a_missing_device_is_an_error_that_names_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"--device cuda: .* and here is no (Triton|CUDA device); allowed: cpu"):
        asked("--device cuda")


@pytest.mark.parametrize(
    ("flags", "own", "chunk"),
    [
        ("", False, 512),
        ("--device cuda --dtype bfloat16", True, 8192),
        ("--device cuda --prefill-kernels reference", False, 512),
        ("--device cuda --prefill-kernels triton", True, 8192),
        ("--device cuda --prefill-kernels triton --chunked-prefill-size 256", True, 256),
    ],
)
def test_prompts_have_kernels_of_their_own_on_a_card_and_longer_parts_then(
    flags: str, own: bool, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    config = parse(["--model-path", "somewhere", *flags.split()])
    assert bool(prompt_variants(config)) == own
    assert config.chunked_prefill_size == chunk


@pytest.mark.skipif(torch.cuda.is_available(), reason="only a machine without a card lacks one")
def test_kernels_for_prompts_that_cannot_run_are_an_error_that_names_the_way_out() -> None:
    with pytest.raises(ConfigError, match="--prefill-kernels triton: needs"):
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


def test_flags_of_replayed_steps_are_their_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")

    def said(text: str) -> GraphSettings | None:
        length = {"SGLANG_SIMULATE_ACC_LEN": "2.5"}
        given = ["--model-path", "somewhere", "--device", "cuda", "--speculative-algorithm", "NEXTN", *text.split()]
        return graph_settings(parse(given, length))

    plain = GraphSettings(overlap=True, simulated_accept_length=2.5)

    def switched(**changed: bool) -> GraphSettings:
        return replace(plain, switches=Switches(**changed))

    assert said("") == plain
    assert said("--disable-overlap-schedule") == replace(plain, overlap=False)
    assert said("--seq-lens-pin") == replace(plain, seq_lens_pin=True)
    assert said("--pdl late --graph-memory-mib 512") == replace(plain, pdl="late", memory_mib=512)
    assert said("--fused-verify-extend") == switched(fused_verify_extend=True)
    assert said("--disable-draft-extend-cuda-graph --glue-graph off") == switched(extend_graph=False, glue_graph=False)
    assert said("--glue-graph on --result-ring") == switched(glue_graph=True, result_ring=True)


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
    with pytest.raises(ConfigError, match=f"{flag}: only where steps are CUDA graphs"):
        parse(["--model-path", "somewhere", *flag.split()])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--seq-lens-pin --disable-overlap-schedule", "--seq-lens-pin: .* allowed without --disable-overlap-schedule"),
        ("--fused-verify-extend", "fused_verify_extend: allowed under speculative_algorithm NEXTN"),
        (
            "--speculative-algorithm NEXTN --fused-verify-extend --disable-draft-extend-cuda-graph",
            "fused_verify_extend: .* allowed with extend_graph only",
        ),
        (
            "--speculative-algorithm DSPARK --speculative-draft-model-path d --glue-graph on",
            "glue_graph: not under speculative_algorithm DSPARK",
        ),
        ("--gc-threshold -1", "--gc-threshold -1: allowed"),
    ],
)
def test_what_excludes_each_other_is_found_on_the_command_line(flags: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(["--model-path", "somewhere", "--device", "cuda", *flags.split()], {})


CUDA = ["--model-path", "somewhere", "--device", "cuda"]


def test_a_window_beyond_what_graphs_hold_is_refused_where_steps_are_graphs() -> None:
    chain = ["--speculative-algorithm", "NEXTN", "--speculative-num-steps"]
    assert parse([*CUDA, *chain, "63"], {}).speculative_num_draft_tokens == 64
    with pytest.raises(ConfigError, match=r"^--speculative-num-steps 64: allowed where .* graphs: 1 to 63$"):
        parse([*CUDA, *chain, "64"], {})
    assert parse([*CUDA, *chain, "64", "--disable-cuda-graph"], {}).speculative_num_steps == 64
    assert parse([*CUDA[:2], *chain, "64"], {}).speculative_num_steps == 64
    with pytest.raises(ConfigError, match="a window of 65 rows: graphs hold 64, so up to 63 drafts"):
        GraphSettings().check(window=65, blocks=False, fastest="off")
    GraphSettings().check(window=64, blocks=False, fastest="off")


def test_so_is_a_block_its_draft_was_trained_for(tmp_path: Path) -> None:
    target = ModelConfig.from_dict(CONFIG)
    draft = str(write_draft(tmp_path / "draft", block_size=64))
    block = [*CUDA, "--speculative-algorithm", "DSPARK", "--speculative-draft-model-path", draft]
    size = "--speculative-dspark-block-size"
    with pytest.raises(ConfigError, match=rf"^{size} 64: .* 1 to 63$"):
        parse([*block, size, "64"], {})
    with pytest.raises(ConfigError, match=rf"^{size} 64: .* 1 to 63$"):
        fitted(parse(block, {}), target)
    assert fitted(parse([*block, size, "63"], {}), target).speculative_num_draft_tokens == 64
    eager = parse([*block, "--speculative-dspark-verify-mode", "cap-accept"], {})
    assert fitted(eager, target).speculative_num_draft_tokens == 65
