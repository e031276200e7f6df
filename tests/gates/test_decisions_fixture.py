"""The fixture table of the decision semantics, row by row: explicit input, result through the real functions."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from math import log1p
from pathlib import Path

import pytest
from fabricate import (
    DSPARK_8,
    NEXTN_3_4,
    NEXTN_5_6,
    PROMPTS,
    VARIANTS,
    ab,
    answers,
    cell,
    change,
    one_token_differs,
    output,
    probe,
    result,
    results,
)

from experiments.engines import ling_activation as activation
from experiments.spec import ChangeSpec, EngineSpec, TaskSpec
from gates import accept_drift, byte_parity, lossless, state_pollution, task_score
from gates.change import ChangeError, classify
from gates.evidence import Accept, Pollution
from gates.lossless import Forced
from gates.run import needs_of
from gates.validity import Fault, Ruler, accept_faults, activation_faults, ruler_faults
from gates.verdict import Verdict, decide, exit_code

ROOT = Path(__file__).parents[2]


def percent(estimate: float, low: float, high: float) -> tuple[float, float, float]:
    return log1p(estimate / 100), log1p(low / 100), log1p(high / 100)


def measured(length: float) -> Accept:
    return Accept(length=length, source="measured")


def speculation_on(engine: str):
    baseline = cell(engine=EngineSpec(name=engine))
    candidate = cell(engine=EngineSpec(name=engine), speculation=NEXTN_3_4)
    classified = classify(baseline, candidate, VARIANTS)
    return classified, needs_of(candidate, classified)


def verdict(name: str) -> Verdict:
    status = "invalid" if name == "invalid" else "valid"
    return Verdict(status=status, verdict=None if name == "invalid" else name, rule="r", reason="r")


def forced(*gaps: float) -> tuple[Forced, ...]:
    """Zero gaps everywhere but the given ones, at position 100 and on of the second prompt."""
    rows = [[0.0] * 256 for _ in PROMPTS]
    rows[1][100 : 100 + len(gaps)] = gaps
    return tuple(Forced(prompt=p.name, gaps=tuple(row)) for p, row in zip(PROMPTS, rows, strict=True))


def test_01_none_against_nextn_with_equal_tokens_is_inconclusive_without_ab():
    classified, needs = speculation_on("ling")
    assert needs["accept_drift"].level == "not_applicable"
    parity = byte_parity.compare(probe(), probe(), required=needs["byte_parity"].required)
    assert (parity.status, parity.required) == ("pass", True)
    decision = decide(classified, results(parity))
    assert (decision.verdict, decision.reason) == ("inconclusive", "gates passed, no A/B")
    assert exit_code([decision]) == 0


def test_02_one_token_at_a_tiny_margin_rejects_on_a_row_invariant_engine():
    classified, needs = speculation_on("ling")
    parity = byte_parity.compare(*one_token_differs(100, 1e-5), required=needs["byte_parity"].required)
    assert parity.status == "fail"
    assert needs["lossless"].level == "not_applicable"
    assert decide(classified, results(parity)).verdict == "reject"


def test_03_the_same_on_sglang_is_a_near_tie_that_is_shown():
    classified, needs = speculation_on("sglang")
    ours, theirs = one_token_differs(100, 1e-5)
    parity = byte_parity.compare(ours, theirs, required=needs["byte_parity"].required)
    near_tie = lossless.near_tie("float32", None)
    gate = lossless.compare(ours, theirs, forced(1e-5), near_tie, required=needs["lossless"].required)
    assert (gate.status, gate.required, len(gate.evidence["near_ties"])) == ("pass", True, 1)
    assert "1 near-ties" in gate.reason
    assert (parity.status, parity.required) == ("fail", False)
    assert decide(classified, results(parity, gate)).verdict == "inconclusive"


def test_04_the_same_at_a_wide_margin_rejects():
    classified, needs = speculation_on("sglang")
    ours, theirs = one_token_differs(100, 0.8)
    near_tie = lossless.near_tie("bfloat16", None)
    gate = lossless.compare(ours, theirs, forced(0.8), near_tie, required=needs["lossless"].required)
    assert decide(classified, results(gate)).rule == "gate:lossless"


def test_05_fused_verify_declared_bitwise_is_rejected_for_its_better_accept_length():
    candidate = cell(kernels={"kda_verify": "fused"}, change=ChangeSpec(rounding="preserved"))
    classified = classify(cell(), candidate, VARIANTS)
    assert classified.class_ == "bitwise"
    bound = accept_drift.bound_of(classified, candidate.change.accept_bound)
    drift = accept_drift.compare(measured(4.49), measured(4.68), bound=bound, required=True)
    assert drift.evidence["drift"] == pytest.approx(0.19)
    decision = decide(classified, results(drift))
    assert (decision.verdict, decision.rule) == ("reject", "gate:accept_drift")


def test_06_the_same_with_rounding_declared_and_a_wider_bound_passes():
    declared = ChangeSpec(rounding="declared", reason="one rounding less", accept_bound=0.25)
    candidate = cell(kernels={"kda_verify": "fused"}, change=declared, task=TaskSpec(name="gsm8k"))
    classified = classify(cell(), candidate, VARIANTS)
    needs = needs_of(candidate, classified)
    bound = accept_drift.bound_of(classified, declared.accept_bound)
    drift = accept_drift.compare(measured(4.49), measured(4.68), bound=bound, required=needs["accept_drift"].required)
    task = task_score.compare(answers(480, 500), answers(480, 500), floor=None, required=needs["task_score"].required)
    assert classified.class_ == "rounding"
    assert decide(classified, results(drift, task)).reason == "gates passed, no A/B"


def bf16_router(correct: int):
    """Three prompts diverge, accept moves by 0.01, the task from 480 to `correct` of 500."""
    candidate = cell(kernels={"router": "bf16"}, task=TaskSpec(name="gsm8k"))
    classified = classify(cell(), candidate, VARIANTS)
    needs = needs_of(candidate, classified)
    changed = [output(f"p{i}", tuple(range(2, 258))) for i in range(3)]
    parity = byte_parity.compare(probe(), probe(*changed), required=needs["byte_parity"].required)
    drift = accept_drift.compare(measured(2.9), measured(2.91), bound=0.05, required=needs["accept_drift"].required)
    task = task_score.compare(
        answers(480, 500), answers(correct, 500), floor=None, required=needs["task_score"].required
    )
    assert (parity.status, len(parity.evidence["divergences"])) == ("fail", 3)
    assert task.required
    return decide(classified, results(parity, drift, task))


def test_07_bf16_router_with_two_answers_lost_passes():
    assert bf16_router(478).reason == "gates passed, no A/B"


def test_08_bf16_router_with_forty_answers_lost_is_rejected():
    decision = bf16_router(440)
    assert (decision.verdict, decision.rule) == ("reject", "gate:task_score")


def test_09_rounding_variant_declared_preserved_is_a_configuration_error():
    candidate = cell(kernels={"router": "bf16"}, change=ChangeSpec(rounding="preserved"))
    with pytest.raises(ChangeError, match=r"change\.rounding=preserved.*kernels\.router"):
        classify(cell(), candidate, VARIANTS)
    assert exit_code([], configuration_error=True) == 2


def test_10_kernel_variant_that_never_ran_is_invalid():
    spec = cell(kernels={"kda_verify": "fused"})
    executor = {"path": "eager", "threads": spec.engine.num_threads}
    kernels = [{"operator": "kda_verify", "variant": "fused", "calls": 0}]
    server = {"dtype": "float32", "kernels": kernels, "executor": executor}
    faults = list(activation_faults(activation.expected(spec), activation.observed(spec, server)))
    assert [fault.reason for fault in faults] == ["kernels.kda_verify=fused was asked for; active: fused, never called"]
    decision = decide(change("bitwise"), results(), faults=faults)
    assert (decision.status, decision.verdict, decision.rule) == ("invalid", None, "inactive")
    assert exit_code([decision]) == 3


def test_11_accept_length_above_the_window_is_invalid():
    decision = decide(change("speculation"), results(), faults=accept_faults(DSPARK_8, measured(9.95)))
    assert (decision.status, decision.rule) == ("invalid", "impossible_value")
    assert "W = 9" in decision.reason
    assert not list(accept_faults(DSPARK_8, measured(9.0)))


def test_12_speculation_without_verify_counts_is_invalid():
    decision = decide(change("speculation"), results(), faults=accept_faults(NEXTN_3_4, None))
    assert (decision.status, decision.verdict) == ("invalid", None)
    assert "without verify counts" in decision.reason


def test_13_pollution_until_a_flush_is_rejected():
    before, polluted = probe().outputs, one_token_differs(100, 1.0)[1].outputs
    pollution = Pollution(load_requests=4, before=before, after_load=polluted, after_flush=before)
    gate = state_pollution.compare(pollution, exact=False, required=True)
    decision = decide(change("same"), results(gate))
    assert (decision.verdict, decision.rule) == ("reject", "gate:state_pollution")
    assert "until a flush" in gate.reason


def test_14_a_strict_prefix_fails_parity():
    ours, theirs = probe(), probe(output("p2", tuple(range(1, 200))))
    for pair in ((ours, theirs), (theirs, ours)):
        gate = byte_parity.compare(*pair, required=True)
        assert gate.status == "fail"
        assert gate.evidence["divergences"][0]["position"] == 199


def test_15_aa_inside_the_floor_is_inconclusive():
    run = ab(step=percent(0.4, -0.5, 1.3), floor=0.012, same_arms=True)
    assert decide(change("same"), results(), ab=run).verdict == "inconclusive"


def test_16_cheaper_step_is_kept():
    run = ab(step=percent(-3, -3.8, -2.1), floor=0.012)
    decision = decide(change("same"), results(), ab=run)
    assert (decision.verdict, decision.rule) == ("keep", "faster")


def test_17_drift_rejects_whatever_the_speed():
    drift = accept_drift.compare(measured(2.9), measured(2.6), bound=0.05, required=True)
    decision = decide(change("same"), results(drift), ab=ab(step=percent(-6, -7, -5)))
    assert (decision.verdict, decision.rule) == ("reject", "gate:accept_drift")


def test_18_deeper_speculation_is_judged_by_tpot():
    classified = classify(cell(speculation=NEXTN_3_4), cell(speculation=NEXTN_5_6), VARIANTS)
    run = ab(step=percent(14, 13, 15), tpot=percent(-4, -5.1, -2.9))
    decision = decide(classified, results(), ab=run)
    assert decision.verdict == "keep"
    assert "TPOT" in decision.reason


def test_19_speculation_that_fell_back_to_none_is_invalid():
    spec = cell(speculation=NEXTN_3_4)
    server = {"dtype": "float32", "speculative_algorithm": None}
    faults = activation_faults(activation.expected(spec), activation.observed(spec, server))
    decision = decide(change("same"), results(), faults=faults, ab=ab(step=percent(-40, -41, -39)))
    assert (decision.status, decision.rule) == ("invalid", "inactive")


def test_20_other_prompt_order_is_invalid():
    ours = Ruler(harness="h", dataset="d", prompt_order="1", load="l")
    faults = list(ruler_faults(ours, replace(ours, prompt_order="2")))
    assert faults == [Fault("ruler", "prompt_order differs: baseline 1, candidate 2")]
    assert decide(change("same"), results(), faults=faults).status == "invalid"


def test_21_fifty_questions_never_reject_and_never_pass():
    task = task_score.compare(answers(49, 50), answers(44, 50), floor=0.95, required=True)
    assert task.status == "not_applicable"
    assert "too few to decide" in task.reason
    assert decide(change("same"), results(task)).verdict == "inconclusive"
    faster = decide(change("same"), results(task), ab=ab(step=percent(-3, -3.8, -2.1)))
    assert (faster.verdict, faster.rule) == ("inconclusive", "gate_undecided")


def test_22_an_invalid_cell_outweighs_a_reject():
    assert exit_code([verdict("keep"), verdict("reject"), verdict("invalid")]) == 3


def test_23_a_reject_outweighs_the_inconclusive():
    assert exit_code([verdict("inconclusive"), verdict("reject"), verdict("inconclusive")]) == 1


@pytest.mark.process
def test_24_a_misspelt_key_is_2_and_nothing_is_started(tmp_path):
    command = [sys.executable, str(ROOT / "run.py"), "workload.num_promts=3", f"output_dir={tmp_path}"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == json.loads(run.stdout.splitlines()[-1])["exit"] == 2
    assert "num_promts" in run.stderr
    assert list(tmp_path.iterdir()) == []
    assert exit_code([verdict("invalid"), verdict("reject")], configuration_error=True) == 2


def test_25_equal_ids_with_another_text_fail_parity():
    ids = tuple(range(1, 257))
    gate = byte_parity.compare(probe(), probe(output("p3", ids, text="other words")), required=True)
    assert gate.status == "fail"
    assert gate.evidence["divergences"][0]["what"] == ["text"]
    assert gate.evidence["divergences"][0]["position"] is None


@pytest.mark.parametrize("name", ["gates_missing", "not_run"])
def test_a_required_gate_that_did_not_run_is_invalid(name):
    gates = () if name == "gates_missing" else results(result("byte_parity", "not_run"))
    assert decide(change("same"), gates).rule == "gate_not_run"
