"""The class of a change is computed, and declarations that contradict it are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fabricate import DSPARK_8, NEXTN_3_4, VARIANTS, cell

from experiments.spec import ChangeSpec, EngineSpec, GateSpec, ModelSpec, WorkloadSpec
from gates.change import STRENGTH, ChangeError, classify

DECLARED = ChangeSpec(rounding="declared", reason="fewer roundings")


def class_of(**changes) -> str:
    return classify(cell(), cell(**changes), VARIANTS).class_


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "same"),
        ({"engine": EngineSpec(num_threads=2)}, "same"),
        ({"engine": EngineSpec(extra_args=("--disable-overlap-schedule",))}, "same"),
        ({"env": {"SGLANG_ENABLE_METADATA_GLUE_GRAPH": "1"}}, "same"),
        ({"workload": WorkloadSpec(name="other"), "gate": GateSpec(mode="off")}, "same"),
        ({"kernels": {"kda_verify": "fused"}}, "bitwise"),
        ({"kernels": {"router": "bf16"}}, "rounding"),
        ({"engine": EngineSpec(random_seed=7, command=("other", "program"))}, "same"),
        ({"engine": EngineSpec(dtype="bfloat16")}, "rounding"),
        ({"engine": EngineSpec(device="cuda")}, "rounding"),
        ({"engine": EngineSpec(extra_args=("--enable-fp32-lm-head",))}, "rounding"),
        ({"change": DECLARED}, "rounding"),
        ({"env": {"SOME_FUSION": "1"}, "change": DECLARED}, "rounding"),
        ({"speculation": NEXTN_3_4}, "speculation"),
        ({"env": {"SGLANG_RAGGED_VERIFY_MODE": "compact"}}, "speculation"),
        ({"engine": EngineSpec(extra_args=("--speculative-attention-mode=decode",))}, "speculation"),
        ({"model": ModelSpec(name="ling_tiny", path="other")}, "model"),
        ({"engine": EngineSpec(extra_args=("--tp-size", "4"))}, "model"),
        ({"engine": EngineSpec(name="sglang")}, "model"),
    ],
)
def test_class_follows_from_the_difference(changes, expected):
    assert class_of(**changes) == expected


def test_the_strongest_part_decides_and_all_are_named():
    candidate = cell(speculation=DSPARK_8, kernels={"router": "bf16", "kda_verify": "fused"}, env={"A": "1"})
    change = classify(cell(), candidate, VARIANTS)
    assert change.class_ == "speculation"
    assert change.parts == (
        "speculation: none -> dspark-8",
        "env.A: None -> 1",
        "kernels.kda_verify: reference -> fused",
        "kernels.router: reference -> bf16 (logits in bfloat16)",
    )


def test_what_differs_in_a_block_s_verification_is_speculation_and_named():
    compact = replace(DSPARK_8, verify_mode="compact", draft_path="d", acceptance="classic", scheduler="causal")
    change = classify(cell(speculation=compact), cell(speculation=replace(compact, scheduler="global")), VARIANTS)
    assert change.class_ == "speculation"
    assert change.parts == ("speculation: dspark-8-compact scheduler=causal -> dspark-8-compact scheduler=global",)
    other = classify(cell(speculation=compact), cell(speculation=replace(compact, draft_path="e")), VARIANTS)
    assert other.parts == ("speculation: dspark-8-compact draft_path=d -> dspark-8-compact draft_path=e",)
    static = replace(compact, verify_mode="static", scheduler=None)
    assert classify(cell(speculation=NEXTN_3_4), cell(speculation=static), VARIANTS).parts == (
        "speculation: nextn-3 -> dspark-8",
    )


def test_going_back_from_a_rounding_variant_rounds_too():
    assert classify(cell(kernels={"router": "bf16"}), cell(), VARIANTS).class_ == "rounding"


def test_default_draft_tokens_and_the_same_number_given_are_one_setting():
    default = replace(NEXTN_3_4, num_draft_tokens=None)
    assert classify(cell(speculation=default), cell(speculation=NEXTN_3_4), VARIANTS).parts == ()


def test_naming_the_reference_variant_is_no_change():
    assert classify(cell(), cell(kernels={"router": "reference"}), VARIANTS).parts == ()


def test_flags_are_compared_by_name_not_by_position():
    baseline = cell(engine=EngineSpec(extra_args=("--a", "1", "--dtype", "x")))
    assert classify(baseline, cell(engine=EngineSpec(extra_args=("--dtype=x", "--a=1"))), VARIANTS).parts == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"change": ChangeSpec(rounding="declared")}, r"change\.reason"),
        ({"change": ChangeSpec(rounding="declared", reason="")}, r"change\.reason"),
        ({"engine": EngineSpec(dtype="bfloat16"), "change": ChangeSpec(rounding="preserved")}, r"engine\.dtype"),
        ({"kernels": {"rooter": "bf16"}}, r"kernels\.rooter: unknown operator; allowed: kda_verify, router"),
        ({"kernels": {"router": "fp8"}}, r"kernels\.router=fp8: unknown variant; allowed: reference, bf16"),
    ],
)
def test_contradictions_are_configuration_errors(changes, message):
    with pytest.raises(ChangeError, match=message):
        class_of(**changes)


def test_preserved_beside_a_bitwise_part_is_fine():
    assert class_of(kernels={"kda_verify": "fused"}, change=ChangeSpec(rounding="preserved")) == "bitwise"


def test_classes_are_ordered_as_documented():
    assert STRENGTH == ("same", "bitwise", "rounding", "speculation", "model")
