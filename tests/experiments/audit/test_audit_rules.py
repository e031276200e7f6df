"""Each rule beside the same launch with its remedy: it speaks of the first and is silent on the second."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.experiments.audit.conftest import DRAFT

if TYPE_CHECKING:
    from collections.abc import Callable

    from experiments.audit.finding import Finding

NEXTN = "--tp-size 4 --speculative-algorithm NEXTN"
DSPARK = f"--tp-size 4 --speculative-algorithm DSPARK --speculative-draft-model-path {DRAFT}"
COMPACT = {"SGLANG_RAGGED_VERIFY_MODE": "compact"}
STATIC = {"SGLANG_RAGGED_VERIFY_MODE": "static"}
KDA = {"SGLANG_OPT_FUSED_KDA_VERIFY": "1"}
GLUE = {"SGLANG_ENABLE_METADATA_GLUE_GRAPH": "1"}
RING = "--enable-linear-replayssm-spec"
FUSION = "--flashinfer-allreduce-fusion-backend auto"
FP8 = {"target": "inclusionAI/Ling-3.0-flash-fp8"}

PAIRS = {
    "chain-window": [
        (f"{NEXTN} --speculative-num-steps 5 --speculative-num-draft-tokens 5", {}, "warning"),
        (f"{NEXTN} --speculative-num-draft-tokens 6", {}, "error"),
        (f"{NEXTN} --speculative-num-steps 5 --speculative-num-draft-tokens 6", {}, None),
        (f"{NEXTN} --speculative-num-steps 5", {}, None),
        (f"{NEXTN} --speculative-num-steps 5 --speculative-num-draft-tokens 8 --speculative-eagle-topk 2", {}, None),
        (f"{NEXTN} --speculative-num-draft-tokens 6 --speculative-adaptive", {}, None),
    ],
    "block-window": [
        (f"{DSPARK} --speculative-num-draft-tokens 8", {}, "error"),
        (f"{DSPARK} --speculative-num-draft-tokens 9", {}, None),
        (f"{DSPARK} --speculative-dspark-block-size 4 --speculative-num-draft-tokens 9", {}, "error"),
        (f"{DSPARK} --speculative-dspark-block-size 4 --speculative-num-draft-tokens 5", {}, None),
    ],
    "flag-overridden": [
        (f"{DSPARK} --speculative-num-steps 5", {}, "warning"),
        (f"{DSPARK} --speculative-eagle-topk 4", {}, "warning"),
        (f"{DSPARK} --speculative-num-steps 1 --speculative-eagle-topk 1", {}, None),
        ("--attention-backend flashmla --page-size 32", {}, "warning"),
        ("--attention-backend flashmla --page-size 64", {}, None),
        ("--attention-backend fa3 --page-size 16", {}, None),
        (f"--tp-size 4 {FUSION} --enable-deterministic-inference", {}, "warning"),
        (f"--tp-size 4 {FUSION} --enforce-disable-flashinfer-allreduce-fusion", {}, "warning"),
        (f"--tp-size 4 {FUSION}", {}, None),
    ],
    "radix-cache-off": [
        (f"{DSPARK} --disable-radix-cache", {}, "note"),
        (f"{DSPARK} --disable-radix-cache --disable-overlap-schedule", {}, None),
        (DSPARK, {}, None),
    ],
    "draft-block": [
        (f"{DSPARK} --speculative-dspark-block-size 16", {}, "warning"),
        (f"{DSPARK} --speculative-dspark-block-size 7", {}, None),
    ],
    "draft-missing": [
        ("--speculative-algorithm DSPARK", {}, "error"),
        (DSPARK, {}, None),
        ("--speculative-algorithm NEXTN", {"target": DRAFT}, None),  # whose config says nothing of draft layers
    ],
    "flag-without-effect": [
        ("--speculative-num-steps 5", {}, "warning"),
        (f"{NEXTN} --speculative-dspark-block-size 8", {}, "warning"),
        (f"{DSPARK} --speculative-dspark-block-size 8", {}, None),
        (f"{DSPARK} --speculative-dspark-sps-table-path T", STATIC, "warning"),
        (f"{DSPARK} --speculative-dspark-sps-table-path T", COMPACT, None),
        (f"{DSPARK} --speculative-dspark-confidence-sts-path T", {}, "warning"),
        (f"{DSPARK} --speculative-dspark-align-verify-tokens-to-graph-tier", COMPACT, None),
        (
            f"{DSPARK} --speculative-dspark-align-verify-tokens-to-graph-tier",
            {"SGLANG_RAGGED_VERIFY_MODE": "cap-accept"},
            "warning",
        ),
        (f"{DSPARK} --speculative-use-rejection-sampling", {}, "warning"),
        (f"{NEXTN} --speculative-use-rejection-sampling --speculative-adaptive", {}, None),
        (f"{DSPARK} --speculative-adaptive", {}, "warning"),
        (f"{DSPARK} --speculative-draft-window-size 512", {}, "warning"),
        (FUSION, {}, "warning"),
        (f"--tp-size 4 {FUSION}", {}, None),
        ("--linear-replayssm-cache-len 32", {}, "warning"),
        ("--linear-replayssm-cache-len 32 --enable-linear-replayssm", {}, None),
    ],
    "acceptance-lossy": [
        (f"{NEXTN} --speculative-accept-threshold-single 0.5", {}, "warning"),
        (f"{NEXTN} --speculative-accept-threshold-acc 1.0", {}, None),
    ],
    "fused-kda-verify-off": [
        (DSPARK, {**KDA, **COMPACT}, "warning"),
        (DSPARK, KDA, None),
        (NEXTN, KDA, None),
        (NEXTN, {"SGLANG_OPT_FUSED_KDA_VERIFY": "0", **COMPACT}, None),
        ("", KDA, "warning"),
        (f"{NEXTN} --speculative-eagle-topk 2", KDA, "warning"),
        (f"{NEXTN} --speculative-num-steps 1", KDA, "warning"),
        (f"{NEXTN} --linear-attn-decode-backend flashinfer", KDA, "warning"),
        (f"{NEXTN} --linear-attn-decode-backend flashinfer --linear-attn-verify-backend triton", KDA, None),
        (NEXTN, {**KDA, "target": DRAFT}, "warning"),
    ],
    "glue-graph-off": [
        (DSPARK, GLUE, "warning"),
        (NEXTN, GLUE, None),
        (f"{NEXTN} --enable-pdmux", GLUE, "warning"),
    ],
    "ring-length": [
        (f"{DSPARK} {RING}", {}, "error"),  # 16 < 2 x 9
        (f"{DSPARK} {RING} --linear-replayssm-cache-len 24", {}, "error"),
        (f"{DSPARK} {RING} --linear-replayssm-cache-len 32", {}, None),
        (f"{NEXTN} --speculative-num-steps 5 {RING}", {}, None),
        (f"{NEXTN} --speculative-num-steps 8 {RING}", {}, "error"),
        (f"{DSPARK} {RING}", {"target": DRAFT}, None),
        (DSPARK, {}, None),
    ],
    "ring-refused": [
        (f"{NEXTN} {RING} --speculative-eagle-topk 2", {}, "error"),
        (f"{NEXTN} {RING} --enable-linear-replayssm", {}, "error"),
        (f"{DSPARK} {RING}", COMPACT, "error"),
        (f"{DSPARK} {RING} --linear-attn-verify-backend triton", COMPACT, None),
        (f"{NEXTN} {RING}", {}, None),
    ],
    "confidence-head-absent": [
        (DSPARK, {}, "note"),
        (DSPARK, STATIC, None),
        (DSPARK, COMPACT, None),
        (NEXTN, {}, None),
    ],
    "acceptance-simulated": [
        (NEXTN, {"SGLANG_SIMULATE_ACC_LEN": "3.0"}, "note"),
        (NEXTN, {"SGLANG_SIMULATE_ACC_LEN": "-1"}, None),
    ],
    "accept-length-impossible": [
        (DSPARK, {"SGLANG_SIMULATE_ACC_LEN": "9.95"}, "error"),
        (f"{DSPARK} --speculative-dspark-block-size 16", {"SGLANG_SIMULATE_ACC_LEN": "9.95"}, None),
    ],
    "trtllm-mla-needs-blackwell": [
        ("--attention-backend trtllm_mla", {}, "error"),
        ("--attention-backend trtllm_mla", {"gpu": "4 x H200"}, "error"),
        ("--decode-attention-backend cutedsl_mla", {"gpu": "H200"}, "error"),
        ("--attention-backend trtllm_mla", {"gpu": "4 x B200"}, None),
        ("--attention-backend trtllm_mla", {"gpu": "RTX PRO 6000"}, None),
        ("--attention-backend fa3", {}, None),
    ],
    "draft-backend-fallback": [
        (f"{DSPARK} --attention-backend trtllm_mla", {"gpu": "B200"}, "warning"),
        (
            f"{DSPARK} --attention-backend trtllm_mla --speculative-draft-attention-backend fa4",
            {"gpu": "B200"},
            None,
        ),
        (f"{DSPARK} --attention-backend fa3 --speculative-draft-attention-backend flashmla", {}, "warning"),
        (f"{DSPARK} --speculative-draft-attention-backend trtllm_mha", {}, "warning"),
        (f"{NEXTN} --attention-backend trtllm_mla", {"gpu": "B200"}, None),
        (DSPARK, {}, None),
    ],
    "host-lengths": [
        (f"{NEXTN} --attention-backend flashinfer", {}, "warning"),
        (f"{DSPARK} --attention-backend fa3 --speculative-draft-attention-backend flashinfer", {}, "warning"),
        (f"{NEXTN} --attention-backend fa3", {}, None),
        ("--attention-backend flashinfer", {}, None),
    ],
    "cache-dtype": [
        ("--attention-backend trtllm_mla --kv-cache-dtype fp8_e5m2", {}, "error"),
        ("--attention-backend trtllm_mla --kv-cache-dtype fp8_e4m3", {}, None),
    ],
    "track-interval": [
        ("--mamba-track-interval 100 --page-size 64", {}, "error"),
        (f"{DSPARK} --mamba-track-interval 8", {}, "error"),
        ("--mamba-track-interval 128 --page-size 64", {}, None),
        ("--mamba-track-interval 100 --page-size 64 --disable-radix-cache", {}, None),
    ],
    "overlap-off": [
        ("--linear-attn-backend helion", {}, "warning"),
        ("--linear-attn-backend helion --disable-radix-cache", {}, None),
        ("--mamba-radix-cache-strategy no_buffer", {}, "error"),
        ("--mamba-radix-cache-strategy no_buffer --disable-overlap-schedule", {}, None),
        ("", {}, None),
    ],
    "memory": [
        ("--tp-size 1", {"gpu": "H200"}, "error"),
        (f"{NEXTN} --mem-fraction-static 0.85", {"gpu": "4 x B200"}, None),
        ("--tp-size 2 --mem-fraction-static 0.8", {"gpu": "H200"}, "error"),
        ("--tp-size 2 --mem-fraction-static 0.9", {"gpu": "H200"}, None),
        ("--tp-size 1", {"gpu": "H200", **FP8}, None),
        ("--tp-size 1", {}, None),
    ],
    "gpu-count": [
        ("--tp-size 4", {"gpu": "2 x B200"}, "error"),
        ("--tp-size 4 --nnodes 2", {"gpu": "2 x B200"}, None),
        ("--tp-size 2 --dp-size 2", {"gpu": "2 x B200"}, "error"),
        ("--tp-size 4", {"gpu": "B200"}, None),
    ],
    "expert-split": [
        ("--tp-size 4", FP8, "error"),
        ("--tp-size 4 --ep-size 4", FP8, None),
        ("--tp-size 2", FP8, None),
        ("--tp-size 4", {}, None),
    ],
}


@pytest.mark.parametrize(
    ("code", "line", "more", "severity"),
    [(code, *case) for code, cases in PAIRS.items() for case in cases],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_rule_speaks_of_what_is_wrong_and_of_nothing_else(
    found: Callable[..., list[Finding]], code: str, line: str, more: dict[str, str], severity: str | None
) -> None:
    spoken = [one.severity for one in found(line, **more) if one.code == code]
    assert {*spoken} == ({severity} if severity else set())


@pytest.mark.parametrize("code", PAIRS)
def test_every_rule_is_seen_to_speak_and_to_be_silent(code: str) -> None:
    assert {bool(severity) for _, _, severity in PAIRS[code]} == {True, False}


def test_the_remedies_are_the_figures_that_the_server_takes(found: Callable[..., list[Finding]]) -> None:
    said = {
        (one.code, one.subject): one.remedy
        for one in (
            *found(f"{DSPARK} {RING}"),
            *found(f"{NEXTN} --speculative-num-steps 5 --speculative-num-draft-tokens 8"),
            *found("--tp-size 4", **FP8),
            *found("--tp-size 1", gpu="B200"),
        )
    }
    assert said["ring-length", "--linear-replayssm-cache-len"] == "--linear-replayssm-cache-len 32"
    assert said["chain-window", "--speculative-num-draft-tokens"].startswith("--speculative-num-draft-tokens 6")
    assert said["expert-split", "--ep-size"].startswith("--ep-size 4")
    assert said["memory", "--tp-size"].startswith("--tp-size 2 ")
