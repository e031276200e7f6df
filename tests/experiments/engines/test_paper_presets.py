"""The post's two servers as presets: word for word where the post is valid, and beside them what is worth measuring.

Nothing here has a checkpoint, a GPU or a network.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from experiments.checks import checked
from experiments.engines.registry import engine_of
from experiments.engines.sglang_lines import client
from experiments.workloads import Data

if TYPE_CHECKING:
    from collections.abc import Callable

    from experiments.spec import CellSpec

NEXTN = """
SGLANG_ENABLE_METADATA_GLUE_GRAPH=1 SGLANG_OPT_FUSED_KDA_VERIFY=1 SGLANG_ENABLE_FUSED_VERIFY_EXTEND_GRAPH=1
python3 -m sglang.launch_server --model-path inclusionAI/Ling-3.0-flash --tp-size 4 --trust-remote-code
--speculative-algorithm NEXTN --speculative-num-steps 5 --speculative-eagle-topk 1 --speculative-num-draft-tokens 6
--attention-backend trtllm_mla --flashinfer-allreduce-fusion-backend auto --mem-fraction-static 0.85
"""
DSPARK = """
SGLANG_OPT_FUSED_KDA_VERIFY=1
python3 -m sglang.launch_server --model-path inclusionAI/Ling-3.0-flash --tp-size 4 --trust-remote-code
--speculative-algorithm DSPARK --speculative-draft-model-path inclusionAI/Ling-3.0-flash-dspark
--attention-backend trtllm_mla --flashinfer-allreduce-fusion-backend auto --disable-radix-cache
"""
CLIENT = """
python3 -m sglang.bench_serving --backend sglang --dataset-name random --num-prompts 1000 --random-input-len 8192
--random-output-len 1024 --random-range-ratio 1.0 --max-concurrency 1
"""
ADDED = "--host 127.0.0.1 --port 1 --served-model-name ling_3_flash"
CORRECTED = ("paper_nextn_corrected", "paper_dspark_corrected")

Preset = "Callable[..., list[CellSpec]]"


def line(cell: CellSpec) -> str:
    command = engine_of(cell).command(cell, port=1, served_name=cell.model.name)
    return " ".join([*(f"{name}={value}" for name, value in command.env.items()), *command.argv])


@pytest.mark.parametrize(("name", "post"), [("paper_nextn", NEXTN), ("paper_dspark", DSPARK)])
def test_the_post_s_line_is_there_word_for_word_and_what_is_added_stands_behind_it(
    preset: Preset, name: str, post: str
) -> None:
    _, speculative = map(checked, preset(name))
    assert line(speculative).split() == [*post.split(), *ADDED.split()]


@pytest.mark.parametrize("name", ["paper_nextn", "paper_dspark", *CORRECTED])
def test_each_preset_has_the_same_target_without_speculation_and_asks_both_as_the_post_does(
    preset: Preset, name: str
) -> None:
    baseline, speculative = map(checked, preset(name))
    plain = line(baseline).split()
    assert not [word for word in plain if "spec" in word or word.startswith("SGLANG_OPT")]
    assert [word for word in plain if word not in line(speculative).split()] == []
    for cell in (baseline, speculative):
        load, task = cell.workload, cell.task
        assert (load.num_prompts, load.max_concurrency, load.output_len) == (1000, 1, 1024)
        assert (task.name, task.num_questions, task.num_shots) == ("gsm8k", 1319, 5)


@pytest.mark.parametrize("name", ["paper_nextn", "paper_dspark"])
def test_the_client_s_line_begins_as_the_post_s(preset: Preset, name: str) -> None:
    data = Data(dataset=Path("d.json"), dataset_sha256="", warmup=(), task_rows=(), task_sha256=None)
    words = client(checked(preset(name)[1]), "http://127.0.0.1:1", data).argv
    assert [*words[: len(CLIENT.split())]] == CLIENT.split()
    assert words[len(CLIENT.split()) :: 2] == ("--base-url", "--model", "--dataset-path", "--seed")


def test_corrected_lines(preset: Preset) -> None:
    nextn, dspark = (line(checked(preset(name)[1])) for name in CORRECTED)
    assert "FUSED_VERIFY_EXTEND" not in nextn
    assert "--speculative-num-steps 5 --speculative-eagle-topk 1 --speculative-num-draft-tokens 6" in nextn
    for text in (
        "SGLANG_RAGGED_VERIFY_MODE=static",
        "--speculative-dspark-block-size 8 --speculative-num-draft-tokens 9",
        "--speculative-draft-attention-backend triton",
        "--enable-linear-replayssm-spec --linear-replayssm-cache-len 32",
    ):
        assert text in dspark
    for text in (nextn, dspark):
        assert not [word for word in ("trtllm_mla", "--trust-remote-code", "--disable-radix-cache") if word in text]


def test_the_floor_of_a_corrected_preset_is_one_that_the_post_s_own_score_meets(preset: Preset) -> None:
    deviation = (0.889 * 0.111 / 1319) ** 0.5
    for name in CORRECTED:
        (floor,) = {cell.task.floor for cell in preset(name)}
        assert floor == pytest.approx(0.889 - 2 * deviation, abs=0.005)


def test_lines_can_be_pasted(preset: Preset) -> None:
    cell = checked(preset("paper_nextn")[1])
    command = engine_of(cell).command(cell, port=1, served_name="n")
    assert shlex.split(command.shell())[0] == "env"
    assert shlex.split(command.shell())[-len(command.argv) :] == [*command.argv]


def test_a_flag_that_a_cell_adds_can_be_changed(preset: Callable[..., list[CellSpec]]) -> None:
    plain, blocks = preset("paper_dspark_corrected", "engine.flags.linear-replayssm-cache-len=64")
    assert blocks.engine.flags["linear-replayssm-cache-len"] == "64"
    assert "linear-replayssm-cache-len" not in plain.engine.flags
