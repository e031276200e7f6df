"""Speculation on an engine that rounds, judged through a live baseline."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import pytest
from fabricate import NEXTN_3_4, PROMPTS, one_token_differs, output, probe
from toy_client import ToyClient
from toy_run import SHORT, SPEC, run

from experiments.clients.generate import ProtocolError
from experiments.spec import EngineSpec
from gates import lossless
from gates.lossless import Forced

BASE = replace(SPEC, engine=EngineSpec(name="sglang"))
CANDIDATE = replace(BASE, speculation=NEXTN_3_4)


def judge(client, golden, baseline_client, spec=CANDIDATE):
    base = replace(spec, speculation=BASE.speculation)
    gates, _, verdict = run(client, golden, spec=spec, base_spec=base, baseline_client=baseline_client)
    return gates["lossless"], gates, verdict


def test_equal_tokens_pass(golden):
    gate, _, verdict = judge(ToyClient(), golden, ToyClient())
    assert (gate.status, gate.required, gate.evidence["near_ties"]) == ("pass", True, [])
    assert gate.reason.startswith("120 tokens forced")  # 3 prompts and 2 canaries, 24 tokens each
    assert verdict.verdict == "inconclusive"


def test_rounding_flips_only_near_ties_and_they_are_counted(golden):
    spec = replace(CANDIDATE, gate=replace(SHORT, near_tie=0.25))
    gate, gates, verdict = judge(ToyClient(fault="noise", amount=0.02), golden, ToyClient(), spec)
    assert (gates["byte_parity"].status, gates["byte_parity"].required) == ("fail", False)
    assert gate.status == "pass"
    assert gate.evidence["near_ties"]
    assert verdict.verdict == "inconclusive"


def test_one_wrong_token_at_the_very_end_is_seen(golden):
    gate, _, verdict = judge(ToyClient(fault="rotate_after", amount=23), golden, ToyClient())
    assert {position for _, position, _ in gate.evidence["beyond"]} == {23}
    assert (verdict.verdict, verdict.rule) == ("reject", "gate:lossless")


def test_without_a_live_baseline_it_is_not_run(golden):
    gate, _, verdict = judge(ToyClient(), golden, None)
    assert gate.status == "not_run"
    assert verdict.status == "invalid"


def test_a_dtype_without_a_default_needs_a_bound(golden):
    spec = replace(CANDIDATE, engine=EngineSpec(name="sglang", dtype="auto"))
    gate, _, verdict = judge(ToyClient(), golden, ToyClient(), spec)
    assert (gate.status, verdict.status) == ("not_run", "invalid")
    assert "gate.near_tie" in gate.reason


def test_an_answer_that_ends_early_fails_though_all_its_tokens_are_right():
    short = probe(output("p2", tuple(range(1, 200))))
    forced = [Forced(prompt=prompt.name, gaps=(0.0,) * 199) for prompt in PROMPTS]
    gate = lossless.compare(probe(), short, forced, 1e-3, required=True)
    assert (gate.status, gate.evidence["ended_elsewhere"]) == ("fail", ["p2"])


@pytest.mark.parametrize(("gap", "status"), [(0.9e-3, "pass"), (1.1e-3, "fail")])
def test_the_bound_is_on_the_gap(gap, status):
    ours, theirs = one_token_differs(0, 1e-5)
    gate = lossless.compare(ours, theirs, [Forced(prompt="p1", gaps=(gap, 0.0))], 1e-3, required=True)
    assert gate.status == status


def test_a_logprob_that_is_not_a_number_is_an_error():
    class Broken(ToyClient):
        def logprobs(self, context):
            return super().logprobs(context) * (nan if len(context) > 9 else 1)

    with pytest.raises(ProtocolError, match="no finite logprob"):
        lossless.collect(Broken(), probe(output("p0", (97, 98, 99))))


def test_a_server_that_scores_other_tokens_is_an_error():
    class Deaf(ToyClient):
        def generate(self, **call):
            return super().generate(**(call | {"logprob_start_len": call["logprob_start_len"] + 1}))

    with pytest.raises(ProtocolError, match="input logprobs for"):
        lossless.collect(Deaf(), probe(output("p0", (97, 98))))
