"""The command line: SGLang's spellings, flags without effect, errors that help; and the public flags, frozen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ling_runtime import flags
from ling_runtime.arguments import ServerConfig, _parser, parse
from ling_runtime.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

MODEL = ["--model-path", "dir"]


BLOCK = "--speculative-algorithm DSPARK --speculative-draft-model-path draft "


def parsed(text: str, environment: Mapping[str, str] | None = None) -> ServerConfig:
    return parse([*MODEL, *text.split()], environment or {})


def test_defaults_are_resolved() -> None:
    config = parsed("")
    assert (config.served_model_name, config.tokenizer_path) == ("dir", "dir")
    assert (config.host, config.port, config.max_running_requests) == ("127.0.0.1", 30000, 8)
    assert config.speculative_algorithm is None
    assert config.without_effect == ()


def test_reads_every_effective_flag() -> None:
    config = parsed(
        "--served-model-name tiny --host 0.0.0.0 --port 0 --context-length 99 --max-running-requests 3 "
        "--dtype bfloat16 --chunked-prefill-size -1 --random-seed 5 --device cpu --num-threads 2 "
        "--prefill-kernels reference --kernel linear=fused router=bf16 --kernel moe=split --weight-version v2"
    )
    assert config == ServerConfig(
        model_path="dir",
        tokenizer_path="dir",
        served_model_name="tiny",
        host="0.0.0.0",
        port=0,
        context_length=99,
        max_running_requests=3,
        dtype="bfloat16",
        chunked_prefill_size=-1,
        prefill_kernels="reference",
        random_seed=5,
        num_threads=2,
        kernel={"linear": "fused", "router": "bf16", "moe": "split"},
        weight_version="v2",
    )


def test_nextn_has_sglangs_defaults_and_its_rule() -> None:
    config = parsed("--speculative-algorithm NEXTN")
    assert (config.speculative_num_steps, config.speculative_eagle_topk) == (3, 1)
    assert config.speculative_num_draft_tokens == 4
    assert parsed("--speculative-algorithm NEXTN --speculative-num-steps 5").speculative_num_draft_tokens == 6


def test_dspark_reads_its_flags() -> None:
    config = parsed(
        BLOCK + "--speculative-dspark-block-size 4 --speculative-num-draft-tokens 5 --speculative-dspark-greedy-draft "
        "--speculative-use-block-verification --speculative-dspark-verify-mode compact "
        "--speculative-dspark-scheduler global --speculative-dspark-sps-table-path cost.json "
        "--speculative-dspark-confidence-sts-path sts.json --speculative-dspark-allow-fallback"
    )
    assert config == ServerConfig(
        model_path="dir",
        tokenizer_path="dir",
        served_model_name="dir",
        random_seed=config.random_seed,
        speculative_algorithm="DSPARK",
        speculative_num_draft_tokens=5,
        speculative_draft_model_path="draft",
        speculative_dspark_block_size=4,
        speculative_use_block_verification=True,
        speculative_dspark_verify_mode="compact",
        speculative_dspark_scheduler="global",
        speculative_dspark_sps_table_path="cost.json",
        speculative_dspark_confidence_sts_path="sts.json",
        speculative_dspark_greedy_draft=True,
        speculative_dspark_allow_fallback=True,
    )


def test_the_mode_is_the_flag_s_or_sglang_s_variable_or_static() -> None:
    variable = {"SGLANG_RAGGED_VERIFY_MODE": "compact"}
    assert parsed(BLOCK).speculative_dspark_verify_mode == "static"
    assert parsed(BLOCK, variable).speculative_dspark_verify_mode == "compact"
    assert parsed(BLOCK + "--speculative-dspark-verify-mode cap-accept", variable).speculative_dspark_verify_mode == (
        "cap-accept"
    )
    assert parsed(BLOCK, variable).speculative_dspark_scheduler == "causal"
    with pytest.raises(ConfigError, match="SGLANG_RAGGED_VERIFY_MODE=fast: allowed: static, cap-accept, compact"):
        parsed(BLOCK, {"SGLANG_RAGGED_VERIFY_MODE": "fast"})


def test_acceptance_is_simulated_as_sglang_is_told_to(caplog: pytest.LogCaptureFixture) -> None:
    chain = "--device cuda --speculative-algorithm NEXTN --speculative-num-steps 3"
    block = f"--device cuda {BLOCK}"
    assert parsed(chain).simulated_accept_length is None
    assert parsed(chain, {"SGLANG_SIMULATE_ACC_LEN": "3.25"}).simulated_accept_length == 3.25
    assert "answers mean nothing" in caplog.text
    for wrong in ("4.5", "0", "many"):
        with pytest.raises(ConfigError, match=f"SGLANG_SIMULATE_ACC_LEN={wrong}: allowed: 1 to 4"):
            parsed(chain, {"SGLANG_SIMULATE_ACC_LEN": wrong})
    with pytest.raises(ConfigError, match="unless --speculative-algorithm is given"):
        parsed("", {"SGLANG_SIMULATE_ACC_LEN": "2"})
    assert parsed(block, {"SGLANG_SIMULATE_ACC_LEN": "6.5"}).simulated_accept_length == 6.5
    with pytest.raises(ConfigError, match="SGLANG_SIMULATE_ACC_LEN=0: allowed: 1 to the rows that a step verifies"):
        parsed(block, {"SGLANG_SIMULATE_ACC_LEN": "0"})
    with pytest.raises(ConfigError, match=r"verify mode compact plans .* allowed: static"):
        parsed(block + "--speculative-dspark-verify-mode compact", {"SGLANG_SIMULATE_ACC_LEN": "2"})


def test_static_verification_says_that_it_schedules_nothing(caplog: pytest.LogCaptureFixture) -> None:
    config = parsed(BLOCK + "--speculative-dspark-sps-table-path cost.json")
    assert config.speculative_dspark_sps_table_path is None
    assert "--speculative-dspark-sps-table-path: ignored, static verification" in caplog.text


def test_flags_without_effect_are_accepted_and_listed() -> None:
    config = parsed("--disable-radix-cache --mem-fraction-static 0.8 --attention-backend triton --ep-size 1")
    assert config.without_effect == (
        "--disable-radix-cache",
        "--mem-fraction-static",
        "--attention-backend",
        "--ep-size",
    )


@pytest.mark.parametrize("flag", ["--tp-size", "--tensor-parallel-size", "--tp"])
def test_ranks_have_the_names_that_sglang_gives_them(flag: str) -> None:
    assert (parsed("").tp_size, parsed(f"{flag} 4").tp_size) == (1, 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "--disable-radix-cash",
            "unknown argument --disable-radix-cash; the nearest known one is --disable-radix-cache",
        ),
        ("--port 65536", "--port 65536: no such port; allowed: 0 to 65535"),
        ("--context-len 5", "unknown argument --context-len; the nearest known one is --context-length"),
        ("--port=1 --speculative-num-step=3", "unknown argument --speculative-num-step; .* --speculative-num-steps"),
        ("--enable-lora", "unknown argument --enable-lora"),
        ("--tp-size 0", "--tp-size 0: must be at least 1"),
        (BLOCK + "--tp-size 2", "--tp-size 2: not under --speculative-algorithm DSPARK; allowed there: 1"),
        ("--ep-size 2", "--ep-size: invalid choice: '2'"),
        ("--speculative-num-steps 3", "without a meaning unless --speculative-algorithm"),
        ("--speculative-algorithm NEXTN --speculative-eagle-topk 4", "drafts are chains"),
        ("--speculative-algorithm NEXTN --speculative-num-draft-tokens 6", "a chain of 3 steps has 4 rows"),
        ("--speculative-algorithm NEXTN --speculative-num-steps 0", "--speculative-num-steps 0: must be at least 1"),
        ("--speculative-algorithm DSPARK", "needs --speculative-draft-model-path"),
        (BLOCK + "--speculative-num-steps 5", "--speculative-num-steps: a block is drafted in one pass, without steps"),
        (BLOCK + "--speculative-eagle-topk 1", "--speculative-eagle-topk: a block is drafted in one pass"),
        (BLOCK + "--speculative-dspark-block-size 0", "--speculative-dspark-block-size 0: must be at least 1"),
        (BLOCK + "--speculative-dspark-verify-mode fast", "invalid choice: 'fast'"),
        ("--speculative-draft-model-path draft", "without a meaning unless --speculative-algorithm"),
        (
            "--speculative-algorithm NEXTN --speculative-dspark-block-size 8 --speculative-dspark-greedy-draft",
            "--speculative-dspark-block-size, --speculative-dspark-greedy-draft: belongs to .* DSPARK",
        ),
        ("--speculative-algorithm EAGLE3", "invalid choice: 'EAGLE3'"),
        ("--dtype float16", "invalid choice: 'float16'"),
        ("--kernel linear", "expected OP=VARIANT"),
        ("--kernel a=b --kernel a=c", "a=b was given before"),
        ("--max-running-requests 0", "--max-running-requests 0: must be at least 1"),
        ("--port x", "--port: invalid int value"),
    ],
)
def test_errors_name_the_flag(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parsed(text)


def test_the_model_path_is_required() -> None:
    with pytest.raises(ConfigError, match="--model-path"):
        parse([])


def test_the_effective_flags_are_these() -> None:
    """A new flag is a deliberate edit of this list."""
    silent = {*flags.SWITCHES, *flags.VALUES, *flags.ONLY}
    effective = {option for action in _parser()._actions for option in action.option_strings} - silent
    assert effective == {
        "-h",
        "--help",
        "--model-path",
        "--model",
        "--tokenizer-path",
        "--served-model-name",
        "--host",
        "--port",
        "--context-length",
        "--max-running-requests",
        "--chunked-prefill-size",
        "--prefill-kernels",
        "--random-seed",
        "--dtype",
        "--device",
        "--tp-size",
        "--tensor-parallel-size",
        "--tp",
        "--num-threads",
        "--kernel",
        "--load-format",
        "--disable-cuda-graph",
        "--disable-overlap-schedule",
        "--seq-lens-pin",
        "--fused-verify-extend",
        "--disable-draft-extend-cuda-graph",
        "--glue-graph",
        "--result-ring",
        "--speculative-algorithm",
        "--speculative-num-steps",
        "--speculative-eagle-topk",
        "--speculative-num-draft-tokens",
        "--speculative-draft-model-path",
        "--speculative-draft-model",
        "--speculative-dspark-block-size",
        "--speculative-use-block-verification",
        "--speculative-dspark-verify-mode",
        "--speculative-dspark-scheduler",
        "--speculative-dspark-sps-table-path",
        "--speculative-dspark-confidence-sts-path",
        "--speculative-dspark-greedy-draft",
        "--speculative-dspark-allow-fallback",
        "--pdl",
        "--graph-memory-mib",
        "--engine-core",
        "--gc-threshold",
        "--disable-gc-freeze",
        "--chat-template",
        "--weight-version",
        "--log-level",
    }
