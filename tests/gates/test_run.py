"""All gates on a live (toy) server, each with the fault that it must catch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fabricate import answers
from toy_client import ToyClient
from toy_run import SHORT, SPEC, TWO, run

from experiments.spec import ChangeSpec, TaskSpec
from gates.applicability import GATES


def test_a_lone_cell_is_a_baseline_with_every_gate_accounted_for():
    gates, evidence, verdict = run(ToyClient())
    assert tuple(gates) == GATES
    assert gates["state_pollution"].status == "pass"
    assert {gates[name].reason for name in ("byte_parity", "logit_digest", "accept_drift")} == {"no baseline"}
    assert verdict.verdict == "baseline"
    assert evidence.accept == TWO


def test_the_same_server_again_passes_everything(golden):
    gates, evidence, verdict = run(ToyClient(), golden)
    assert {name for name, gate in gates.items() if gate.status == "pass"} == {
        "byte_parity",
        "logit_digest",
        "accept_drift",
        "state_pollution",
    }
    assert verdict.verdict == "inconclusive"
    assert evidence.probe == golden.probe


def test_evidence_survives_json(golden):
    _, evidence, _ = run(ToyClient())
    assert golden == evidence


def test_canaries_are_the_narrowest_of_the_pool_and_are_asked_again(golden):
    canaries = [prompt.name for prompt in golden.probe.prompts if prompt.canary]
    assert len(canaries) == 2
    _, evidence, _ = run(ToyClient(fault="noise", amount=1.0), golden)
    assert [prompt.name for prompt in evidence.probe.prompts if prompt.canary] == canaries
    assert run(ToyClient(fault="noise", amount=1.0))[1].probe.prompts != golden.probe.prompts


def test_each_probe_prompt_is_cold():
    client = ToyClient()
    _, evidence, _ = run(client)
    assert client.flushes == len(evidence.probe.prompts) + 2  # the canary scan, and the pollution gate


@pytest.mark.parametrize(
    ("fault", "amount", "gate"),
    [("rotate_after", 20, "byte_parity"), ("noise", 3e-5, "logit_digest"), ("pollute", 0, "state_pollution")],
)
def test_a_known_bad_server_is_caught_by_its_gate(golden, fault, amount, gate):
    gates, _, verdict = run(ToyClient(fault=fault, amount=amount), golden)
    assert next(name for name, found in gates.items() if found.status == "fail") == gate
    assert (verdict.verdict, verdict.rule) == ("reject", f"gate:{gate}")


@pytest.mark.parametrize(
    ("fault", "words"),
    [("pollute", "until a flush"), ("jitter", "not deterministic"), ("plain", "differ without logprobs")],
)
def test_pollution_is_told_from_a_server_that_is_not_deterministic(fault, words):
    gate = run(ToyClient(fault=fault))[0]["state_pollution"]
    assert gate.status == "fail"
    assert words in gate.reason


def test_pollution_rejects_a_cell_without_a_baseline_too():
    assert run(ToyClient(fault="pollute"))[2].verdict == "reject"


@pytest.mark.parametrize("fault", ["dead", "no_logprobs", "empty"])
def test_a_server_that_cannot_be_probed_is_invalid(golden, fault):
    gates, _, verdict = run(ToyClient(fault=fault), golden)
    assert gates["byte_parity"].status == "not_run"
    assert gates["state_pollution"].status == "not_run"
    assert (verdict.status, verdict.rule) == ("invalid", "gate_not_run")


@pytest.mark.parametrize(("kernel", "status"), [("bf16", "pass"), ("fused", "fail")])
def test_only_a_rounding_change_may_widen_the_drift_bound(golden, kernel, status):
    operator = {"bf16": "router", "fused": "kda_verify"}[kernel]
    wide = replace(SPEC, kernels={operator: kernel}, change=ChangeSpec(accept_bound=0.25))
    gates, _, _ = run(ToyClient(), golden, spec=wide, accept=replace(TWO, length=2.2))
    assert gates["accept_drift"].status == status


def test_missing_numbers_are_not_run(golden):
    gates, _, verdict = run(ToyClient(), golden, accept=None)
    assert (gates["accept_drift"].status, gates["accept_drift"].reason) == ("not_run", "no accept length")
    assert verdict.status == "invalid"


def test_a_rounding_change_without_a_task_is_invalid(golden):
    rounding = replace(SPEC, kernels={"router": "bf16"})
    gates, _, verdict = run(ToyClient(), golden, spec=rounding)
    assert gates["task_score"].status == "not_run"
    assert verdict.status == "invalid"


def test_a_task_floor_binds_without_a_baseline():
    floored = replace(SPEC, task=TaskSpec(name="gsm8k", floor=0.9))
    gates, _, verdict = run(ToyClient(), spec=floored, task=answers(440, 500))
    assert (gates["task_score"].status, verdict.verdict) == ("fail", "reject")
    assert run(ToyClient(), spec=floored, task=answers(460, 500))[2].verdict == "baseline"


def test_gates_switched_off_ask_nothing_and_decide_nothing(golden):
    client = ToyClient(fault="dead")
    off = replace(SPEC, gate=replace(SHORT, mode="off"))
    gates, _, verdict = run(client, golden, spec=off)
    assert client.calls == []
    assert {gate.status for gate in gates.values()} == {"not_applicable"}
    assert gates["byte_parity"].required
    assert (verdict.verdict, verdict.rule) == ("inconclusive", "no_ab")


@pytest.mark.parametrize("more", [{"parity_tokens": 25}, {"parity_prompts": 4}])
def test_a_gate_that_wants_more_than_its_baseline_was_asked_is_not_run(golden, more):
    gates, _, verdict = run(ToyClient(), golden, spec=replace(SPEC, gate=replace(SHORT, **more)))
    assert "the baseline was asked 3 of 24" in gates["byte_parity"].reason
    assert verdict.status == "invalid"


def test_a_candidate_is_asked_what_its_baseline_was_asked(golden):
    less = replace(SPEC, gate=replace(SHORT, parity_tokens=4, parity_prompts=1))
    gates, evidence, _ = run(ToyClient(), golden, spec=less)
    assert evidence.probe == golden.probe
    assert gates["byte_parity"].status == "pass"
