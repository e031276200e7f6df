"""SGLang's command line and environment, from a cell of every algorithm."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from experiments.audit.installed import installed
from experiments.checks import checked
from experiments.command import Command
from experiments.engines.registry import engine_of
from experiments.engines.sglang_flags import flags
from experiments.spec import ModelSpec, SpeculationSpec
from tests.experiments.engines.conftest import DRAFT, HUB
from tests.fakes.checkpoint import write_checkpoint, write_draft

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from experiments.spec import CellSpec

BLOCK = SpeculationSpec(algorithm="dspark", block_size=8)


def command(cell: CellSpec) -> Command:
    done = checked(cell)
    return engine_of(done).command(done, port=1, served_name="n")


def words(cell: CellSpec) -> str:
    """Behind the program and before what every launch has."""
    line = " ".join(command(cell).argv)
    start = f"-m sglang.launch_server --model-path {cell.model.path} "
    _, _, rest = line.partition(start)
    given, _, added = f"{rest}".partition("--host ")
    assert added == "127.0.0.1 --port 1 --served-model-name n"
    return given.strip()


@pytest.mark.parametrize(
    ("speculation", "line"),
    [
        (SpeculationSpec(), ""),
        (
            SpeculationSpec(algorithm="nextn", num_steps=5),
            (
                "--speculative-algorithm NEXTN --speculative-num-steps 5 --speculative-eagle-topk 1 "
                "--speculative-num-draft-tokens 6"
            ),
        ),
        (
            SpeculationSpec(algorithm="eagle3", num_steps=3, draft_path="org/draft"),
            (
                "--speculative-algorithm EAGLE3 --speculative-draft-model-path org/draft --speculative-num-steps 3 "
                "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
            ),
        ),
        (
            SpeculationSpec(algorithm="standalone", num_steps=2, draft_path="org/small"),
            (
                "--speculative-algorithm STANDALONE --speculative-draft-model-path org/small --speculative-num-steps 2 "
                "--speculative-eagle-topk 1 --speculative-num-draft-tokens 3"
            ),
        ),
        (
            SpeculationSpec(algorithm="ngram", num_draft_tokens=12),
            "--speculative-algorithm NGRAM --speculative-num-draft-tokens 12",
        ),
        (
            replace(BLOCK, acceptance="block"),
            (
                f"--speculative-algorithm DSPARK --speculative-draft-model-path {DRAFT} --speculative-dspark-block-size"
                " 8 --speculative-num-draft-tokens 9 --speculative-use-block-verification"
            ),
        ),
        (
            replace(BLOCK, block_size=None),
            f"--speculative-algorithm DSPARK --speculative-draft-model-path {DRAFT}",
        ),
    ],
    ids=lambda value: value.algorithm if isinstance(value, SpeculationSpec) else None,
)
def test_flags_of_speculation(make: Callable[..., CellSpec], speculation: SpeculationSpec, line: str) -> None:
    assert words(make(speculation)) == line


def test_a_block_whose_size_is_left_to_its_draft_is_still_known_by_its_window(make: Callable[..., CellSpec]) -> None:
    assert checked(make(replace(BLOCK, block_size=None))).speculation.window == 9


def test_a_local_draft_tells_its_own_block(make: Callable[..., CellSpec], tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "draft", block_size=4)
    cell = checked(make(replace(BLOCK, block_size=None, draft_path=str(draft))))
    assert (cell.speculation.window, cell.speculation.draft_path) == (5, str(draft))


@pytest.mark.parametrize(
    ("speculation", "env"),
    [
        (BLOCK, {}),
        (replace(BLOCK, verify_mode="static"), {"SGLANG_RAGGED_VERIFY_MODE": "static"}),
        (replace(BLOCK, verify_mode="compact"), {"SGLANG_RAGGED_VERIFY_MODE": "compact"}),
        (replace(BLOCK, greedy_draft=True), {"SGLANG_DSPARK_USE_GREEDY_DRAFT": "1"}),
    ],
)
def test_what_sglang_reads_from_the_environment_alone(
    make: Callable[..., CellSpec], speculation: SpeculationSpec, env: dict[str, str]
) -> None:
    assert command(make(speculation, env={"SGLANG_OPT_FUSED_KDA_VERIFY": "1"})).env == {
        "SGLANG_OPT_FUSED_KDA_VERIFY": "1",
        **env,
    }


def test_keys_of_the_engine_and_any_other_flag(make: Callable[..., CellSpec]) -> None:
    cell = make(
        tp_size=4,
        ep_size=2,
        dp_size=2,
        trust_remote_code=True,
        attention_backend="fa3",
        linear_attn_backend="triton",
        moe_runner_backend="triton",
        quantization="fp8",
        kv_cache_dtype="fp8_e4m3",
        context_length=16384,
        max_running_requests=4,
        random_seed=0,
        mem_fraction_static=0.85,
        num_threads=2,
        dtype="bfloat16",
        device="cpu",
        flags={"disable-radix-cache": "", "page-size": "64"},
        extra_args=("--stream-interval", "4"),
    )
    assert words(replace(cell, engine=replace(cell.engine, extra_args=()))) == (
        "--tp-size 4 --ep-size 2 --dp-size 2 --trust-remote-code --attention-backend fa3 --linear-attn-backend triton "
        "--moe-runner-backend triton --quantization fp8 --kv-cache-dtype fp8_e4m3 --context-length 16384 "
        "--max-running-requests 4 --random-seed 0 --disable-radix-cache --page-size 64 --mem-fraction-static 0.85 "
        "--dtype bfloat16 --device cpu"
    )
    assert command(cell).argv[-2:] == ("--stream-interval", "4")
    assert command(cell).env == {"OMP_NUM_THREADS": "2"}


@pytest.mark.whole
def test_every_flag_that_a_key_can_become_is_one_of_the_installed_version(make: Callable[..., CellSpec]) -> None:
    known = installed(Command((sys.executable,)))
    assert known is not None
    assert known.version == "0.5.23"
    cells = [make(SpeculationSpec(algorithm="nextn", num_steps=3)), make(BLOCK), make()]
    written = {flag for cell in cells for flag in flags(cell, port=1, served_name="n")}
    assert len(written) > 20
    assert written - known.flags.keys() == set()


def test_a_model_is_a_directory_or_an_id_with_a_revision(make: Callable[..., CellSpec], tmp_path: Path) -> None:
    local = write_checkpoint(tmp_path / "model")
    assert checked(make(model=ModelSpec(name="m", path=str(local)))).model.path == str(local)
    cell = make(model=ModelSpec(name="m", path=HUB, revision="v1"))
    assert words(cell) == "--revision v1"


def test_code_of_a_checkpoint_is_never_trusted_by_default(make: Callable[..., CellSpec]) -> None:
    assert "--trust-remote-code" not in command(make()).argv


def test_another_program_keeps_the_flags(make: Callable[..., CellSpec]) -> None:
    line = command(make(command=("python3", "-m", "sglang.launch_server"), tp_size=2))
    assert line.argv[:7] == ("python3", "-m", "sglang.launch_server", "--model-path", HUB, "--tp-size", "2")


def test_any_flag_s_position_is_the_algorithm_s_own_business(make: Callable[..., CellSpec]) -> None:
    """A value of zero is a value, and False is none."""
    line: Any = command(make(SpeculationSpec(algorithm="nextn", num_steps=1), random_seed=0)).argv
    assert line[line.index("--random-seed") + 1] == "0"
    assert "False" not in line
