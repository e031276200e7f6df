"""What SGLang has to show for every setting that a cell asks of it, and what it means where it does not."""

from __future__ import annotations

import ast
import importlib.util
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from experiments import activation
from experiments.checks import checked
from experiments.engines.registry import engine_of
from experiments.engines.sglang_versions import DIRECTORY, TESTED, Sign, nearest, ordered, read
from experiments.spec import SpeculationSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from experiments.spec import CellSpec

NEXTN = SpeculationSpec(algorithm="nextn", num_steps=5)
BLOCK = SpeculationSpec(algorithm="dspark", block_size=8, verify_mode="static")
CHAIN_INFO: dict[str, Any] = {
    "version": "0.5.23",
    "device": "cuda",
    "tp_size": 4,
    "trust_remote_code": True,
    "attention_backend": "trtllm_mla",
    "flashinfer_allreduce_fusion_backend": "auto",
    "mem_fraction_static": 0.85,
    "disable_radix_cache": True,
    "speculative_algorithm": "EAGLE",
    "speculative_num_steps": 5,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 6,
}
CHAIN_LOG = "[2026-01-01 00:00:00 TP0] KDA fused chain-verify kernel enabled (topk==1 path).\n"
BLOCK_INFO = CHAIN_INFO | {
    "speculative_algorithm": "DSPARK",
    "speculative_draft_model_path": "inclusionAI/Ling-3.0-flash-dspark",
    "speculative_dspark_block_size": 8,
    "speculative_num_steps": 1,
    "speculative_num_draft_tokens": 9,
}
BLOCK_LOG = (
    "[TP0] Initialized DSpark draft runner. attention_backend=triton, model=M, gamma=8, verify_num_draft_tokens=9, q\n"
)
RAGGED = (
    "[TP0] DSpark ragged-verify scheduler enabled (mode={}, lag=0, relay_lag=1, sps_table={}, graph_tier=dynamic).\n"
)


@pytest.fixture
def chain(make: Callable[..., CellSpec]) -> CellSpec:
    return checked(
        make(
            NEXTN,
            tp_size=4,
            trust_remote_code=True,
            attention_backend="trtllm_mla",
            mem_fraction_static=0.85,
            flags={"flashinfer-allreduce-fusion-backend": "auto", "disable-radix-cache": ""},
            env={"SGLANG_OPT_FUSED_KDA_VERIFY": "1", "SGLANG_ENABLE_METADATA_GLUE_GRAPH": "1", "NCCL_DEBUG": "INFO"},
        )
    )


def faults(cell: CellSpec, info: dict[str, Any], log: str) -> list[str]:
    return [fault.reason for fault in activation.prove(cell, info, log).faults]


def test_all_that_was_asked_for_and_is_there_has_no_fault(chain: CellSpec) -> None:
    assert faults(chain, CHAIN_INFO, CHAIN_LOG) == []
    proof = activation.prove(chain, CHAIN_INFO, CHAIN_LOG).to_json()
    assert proof["ok"]
    assert proof["expected"]["--speculative-algorithm"] == "NEXTN"
    assert proof["observed"]["env.SGLANG_OPT_FUSED_KDA_VERIFY"] == "1"
    assert not any("NCCL" in key or "port" in key for key in proof["expected"])


@pytest.mark.parametrize(
    ("info", "log", "fault"),
    [
        ({"tp_size": 1}, CHAIN_LOG, "--tp-size=4 was asked for; active: 1"),
        ({"device": "cpu"}, CHAIN_LOG, "engine.device=cuda was asked for; active: cpu"),
        ({"trust_remote_code": False}, CHAIN_LOG, "--trust-remote-code= was asked for; active: None"),
        ({"attention_backend": "fa3"}, CHAIN_LOG, "--attention-backend=trtllm_mla was asked for; active: fa3"),
        ({"mem_fraction_static": 0.8}, CHAIN_LOG, "--mem-fraction-static=0.85 was asked for; active: 0.8"),
        (
            {"flashinfer_allreduce_fusion_backend": None},
            CHAIN_LOG,
            "--flashinfer-allreduce-fusion-backend=auto was asked for; active: None",
        ),
        ({"speculative_num_steps": 3}, CHAIN_LOG, "--speculative-num-steps=5 was asked for; active: 3"),
        (
            {},
            "",
            "env.SGLANG_OPT_FUSED_KDA_VERIFY=1 was asked for; active: nothing: its line is not in the log",
        ),
        (
            {},
            f"{CHAIN_LOG}[TP0] Metadata glue-graph capture failed for key 1; falling back to eager metadata prep",
            (
                "env.SGLANG_ENABLE_METADATA_GLUE_GRAPH=1 was asked for; active: the log denies it: "
                "[TP0] Metadata glue-graph capture failed for key 1; falling back to eager metadata prep"
            ),
        ),
        (
            {},
            f"{CHAIN_LOG}FlashInfer workspace preflight probe failed (no). Skipping allreduce fusion.",
            (
                "--flashinfer-allreduce-fusion-backend=auto was asked for; active: the log denies it: "
                "FlashInfer workspace preflight probe failed (no). Skipping allreduce fusion."
            ),
        ),
    ],
)
def test_anything_else_is_said_in_one_line(chain: CellSpec, info: dict[str, Any], log: str, fault: str) -> None:
    assert faults(chain, CHAIN_INFO | info, log) == [fault]


def test_a_server_that_dropped_its_speculation_is_found_by_each_flag(chain: CellSpec) -> None:
    gone = {key: None for key in CHAIN_INFO if key.startswith("speculative")}
    assert len(faults(chain, CHAIN_INFO | gone, CHAIN_LOG)) == 5


def test_a_server_that_speculates_unasked_is_found(make: Callable[..., CellSpec]) -> None:
    cell = checked(make())
    assert faults(cell, CHAIN_INFO, "") == ["speculation.algorithm=none was asked for; active: EAGLE"]
    assert faults(cell, CHAIN_INFO | {"speculative_algorithm": None}, "") == []


def test_a_variable_that_nothing_reads_is_inactive(make: Callable[..., CellSpec]) -> None:
    cell = checked(make(env={"SGLANG_ENABLE_FUSED_VERIFY_EXTEND_GRAPH": "1"}))
    (fault,) = faults(cell, CHAIN_INFO | {"speculative_algorithm": None}, "")
    assert fault == (
        "env.SGLANG_ENABLE_FUSED_VERIFY_EXTEND_GRAPH=1 was asked for; active: "
        "nothing: SGLang 0.5.23 reads no such variable"
    )


def test_a_variable_that_was_to_be_off_must_not_show(make: Callable[..., CellSpec]) -> None:
    cell = checked(make(env={"SGLANG_OPT_FUSED_KDA_VERIFY": "0"}))
    quiet = CHAIN_INFO | {"speculative_algorithm": None}
    assert faults(cell, quiet, "") == []
    (fault,) = faults(cell, quiet, CHAIN_LOG)
    assert fault.endswith("active: on: its line is in the log")


def test_a_block_is_proved_by_the_line_of_its_draft(make: Callable[..., CellSpec]) -> None:
    cell = checked(make(BLOCK))
    assert faults(cell, BLOCK_INFO, BLOCK_LOG) == []
    assert faults(cell, BLOCK_INFO, "") == ["speculation.block_size=8 was asked for; active: None"]
    assert faults(cell, BLOCK_INFO, BLOCK_LOG.replace("gamma=8", "gamma=7")) == [
        "speculation.block_size=8 was asked for; active: 7"
    ]
    (fault,) = faults(cell, BLOCK_INFO, BLOCK_LOG + RAGGED.format("compact", "uninitialized"))
    assert fault == "speculation.verify_mode=static was asked for; active: compact"


def test_a_block_left_to_its_draft_is_held_to_the_window_that_the_draft_is_known_for(
    make: Callable[..., CellSpec],
) -> None:
    cell = checked(make(replace(BLOCK, block_size=None)))
    assert "--speculative-dspark-block-size" not in engine_of(cell).expected(cell)
    assert faults(cell, BLOCK_INFO, BLOCK_LOG) == []
    assert len(faults(cell, BLOCK_INFO | {"speculative_num_draft_tokens": 17}, BLOCK_LOG)) == 1


def test_scheduled_verification_is_proved_with_its_files(make: Callable[..., CellSpec], tmp_path: Path) -> None:
    files = {key: tmp_path / key for key in ("sts_path", "cost_table_path")}
    for file in files.values():
        file.touch()
    paths: dict[str, Any] = {key: str(file) for key, file in files.items()}
    cell = checked(make(replace(BLOCK, verify_mode="compact", **paths)))
    info = BLOCK_INFO | {
        "speculative_dspark_confidence_sts_path": paths["sts_path"],
        "speculative_dspark_sps_table_path": paths["cost_table_path"],
    }
    loaded = f"DSpark STS calibration loaded from {paths['sts_path']} (gamma=8); per-position temperatures\n"
    whole = BLOCK_LOG + RAGGED.format("compact", paths["cost_table_path"]) + loaded
    assert faults(cell, info, whole) == []
    assert [fault.partition("=")[0] for fault in faults(cell, info, BLOCK_LOG)] == [
        "--speculative-dspark-confidence-sts-path",
        "--speculative-dspark-sps-table-path",
        "speculation.verify_mode",
    ]
    (fault,) = faults(cell, info, whole + "DSpark SPS table is uninitialized (flat): the verify budget degenerates")
    assert fault.startswith("--speculative-dspark-sps-table-path=")


def test_zero_is_asked_for(make: Callable[..., CellSpec]) -> None:
    cell = checked(make(random_seed=0))
    info = CHAIN_INFO | {"speculative_algorithm": None, "random_seed": 7}
    assert faults(cell, info, "") == ["--random-seed=0 was asked for; active: 7"]


def test_flags_under_other_names_and_words_behind_them(make: Callable[..., CellSpec]) -> None:
    cell = checked(make(extra_args=("--data-parallel-size", "2", "--cuda-graph-bs-decode", "1", "2")))
    info = CHAIN_INFO | {"speculative_algorithm": None, "dp_size": 2, "cuda_graph_bs_decode": [1, 2]}
    assert faults(cell, info, "") == []
    assert faults(cell, info | {"cuda_graph_bs_decode": [1]}, "") == [
        "--cuda-graph-bs-decode=1 2 was asked for; active: 1"
    ]
    del info["dp_size"]
    assert faults(cell, info, "") == [
        "--data-parallel-size=2 was asked for; active: not in /server_info of SGLang 0.5.23"
    ]


def remarks(cell: CellSpec, info: dict[str, Any], log: str) -> list[str]:
    return [*engine_of(cell).remarks(cell, info, log)]


def test_remarks_quote_what_sglang_says(chain: CellSpec) -> None:
    fallback = "DSPARK draft worker only supports attention_backend in ['fa3'] for now, but got 'x'."
    assert remarks(chain, CHAIN_INFO, CHAIN_LOG + fallback) == [
        f"SGLang says: {fallback.removeprefix('DSPARK ')}",
        "env.SGLANG_ENABLE_METADATA_GLUE_GRAPH=1 leaves no line in the log; proved is only that SGLang 0.5.23 reads it",
    ]


@pytest.mark.parametrize("running", ["0.6.0", "0.5.24rc1", "0.5.9", None])
def test_another_version_is_read_as_the_nearest_with_a_remark(chain: CellSpec, running: str | None) -> None:
    info = CHAIN_INFO | {"version": running}
    assert faults(chain, info, CHAIN_LOG) == []
    assert remarks(chain, info, CHAIN_LOG)[0] == (
        f"SGLang {running} runs and 0.5.23 was tested; what it shows is read as 0.5.23 shows it"
    )


def test_versions_are_ordered_as_numbers_and_the_nearest_is_not_newer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sorted(["0.5.23", "0.5.9", "0.10.0"], key=ordered) == ["0.5.9", "0.5.23", "0.10.0"]
    names = ("0.5.9", "0.5.23", "0.6.1")
    monkeypatch.setattr(Path, "glob", lambda *_: (DIRECTORY / f"{name}.yaml" for name in names))
    monkeypatch.setattr("experiments.engines.sglang_versions.read", lambda name: name)
    found = [nearest(version) for version in ("0.5.9", "0.6.0", "0.5.24", "1.0", "0.4", None)]
    assert found == ["0.5.9", "0.5.23", "0.5.23", "0.6.1", "0.5.9", "0.5.9"]


SOURCES = (
    *("arg_groups/*.py", "speculative/*.py", "speculative/dspark_components/*.py", "layers/flashinfer_comm_fusion.py"),
    *("model_executor/runner/*.py", "layers/attention/linear/kda_backend.py"),
)
"""Where the messages of the data file are written, below sglang/srt."""


@pytest.fixture(scope="module")
def messages() -> list[str]:
    """Every text of the installed SGLang's sources that may be logged, with something in place of what is filled in."""
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    root = Path(spec.submodule_search_locations[0]) / "srt"
    files = [path for pattern in SOURCES for path in root.glob(pattern)]
    return [text for path in files for node in ast.walk(ast.parse(path.read_text())) for text in texts(node)]


def texts(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Constant(value=str(text)):
            yield re.sub(r"%[.\d]*[sdrf]", "7", text)
        case ast.JoinedStr(values=parts):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "7" for part in parts)


def patterns() -> Iterator[tuple[str, str]]:
    version = read(TESTED)
    for key, sign in version.log.items():
        yield from ((key, pattern) for pattern in (sign.shows, *sign.denies) if pattern)
    yield from (("remark", pattern) for pattern in version.remarks)


@pytest.mark.whole
def test_every_pattern_of_the_data_file_is_a_message_of_the_installed_source(messages: list[str]) -> None:
    assert [
        (key, pattern) for key, pattern in patterns() if not any(re.search(pattern, text) for text in messages)
    ] == []


def test_a_sign_of_nothing_shows_nothing() -> None:
    assert Sign().read("1", "anything") == "1"
    assert Sign(shows="on", silence="off").read("1", "") == "off"
    assert Sign(shows="on").read("1", "") is None


def test_the_names_that_a_version_reads_are_those_of_its_sources() -> None:
    known = read(TESTED).environment
    assert {"SGLANG_ENABLE_METADATA_GLUE_GRAPH", "SGLANG_SIMULATE_ACC_LEN", "SGLANG_RAGGED_VERIFY_MODE"} <= known
    assert not {"SGLANG_ENABLE_FUSED_VERIFY_EXTEND_GRAPH", "SGLANG_ENABLE_SPEC_V2"} & known
