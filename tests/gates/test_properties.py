"""What holds for every input: the verdict's safety, the exit code's order, parity's symmetry, the exact test."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from typing import get_args

import pytest
from fabricate import ab, answers, change, output, probe, result, results
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from analysis.statistics import mcnemar_exact
from gates import accept_drift, byte_parity, logit_digest, task_score
from gates.applicability import GATES, TABLE, applicability, elsewhere
from gates.change import STRENGTH, ChangeClass
from gates.engine import EngineTraits
from gates.evidence import Accept, CellEvidence, Status
from gates.probe import digest_grid, float32_bits, near_ties
from gates.speed import Expectation
from gates.validity import Fault
from gates.verdict import Verdict, decide, exit_code

STATUSES = st.sampled_from(get_args(Status))
CLASSES = st.sampled_from(get_args(ChangeClass))
GATE_SETS = st.tuples(*(st.builds(result, st.just(name), STATUSES, required=st.booleans()) for name in GATES))
BOUNDS = st.floats(-0.2, 0.2)
INTERVALS = st.tuples(BOUNDS, BOUNDS, BOUNDS).map(sorted).map(lambda x: (x[1], x[0], x[2]))
EXPECTATIONS = st.builds(Expectation, expect=st.sampled_from(["faster", "equal"]), margin=st.just(0.01))
RUNS = st.builds(ab, step=INTERVALS, tpot=INTERVALS, floor=st.sampled_from([0.0, 0.012]), same_arms=st.booleans())
IDS = st.lists(st.integers(0, 3), min_size=1, max_size=6).map(tuple)
OUTPUTS = st.builds(output, st.just("p0"), IDS, finish_reason=st.sampled_from(["length", "stop"]))
VERDICTS = {
    0: Verdict(status="valid", verdict="keep", rule="r", reason="r"),
    1: Verdict(status="valid", verdict="reject", rule="r", reason="r"),
    3: Verdict(status="invalid", verdict=None, rule="r", reason="r"),
}


@given(CLASSES, GATE_SETS, RUNS, EXPECTATIONS)
def test_a_kept_change_passed_every_required_gate(class_, gates, run, expectation):
    verdict = decide(change(class_), gates, ab=run, expectation=expectation)
    required = {gate.status for gate in gates if gate.required}
    if verdict.verdict == "keep":
        assert required <= {"pass"}
        assert not run.same_arms
    if "not_run" in required:
        assert (verdict.status, verdict.verdict) == ("invalid", None)
    elif "fail" in required:
        assert verdict.verdict == "reject"


@given(CLASSES, GATE_SETS, RUNS)
def test_a_fault_leaves_no_verdict(class_, gates, run):
    verdict = decide(change(class_), gates, ab=run, faults=[Fault("infrastructure", "server died")])
    assert (verdict.status, verdict.verdict, verdict.rule) == ("invalid", None, "infrastructure")


@given(CLASSES, RUNS)
def test_nothing_is_decided_for_speed_inside_the_floor(class_, run):
    wide = replace(run, floor=0.3)
    assert decide(change(class_), results(), ab=wide).verdict == "inconclusive"


@given(GATE_SETS, RUNS, st.sampled_from([None, "ling_tiny"]))
def test_without_a_baseline_nothing_is_kept(gates, run, golden):
    assert decide(None, gates, ab=run, golden=golden).verdict in (None, "reject", "baseline")


@given(st.lists(st.sampled_from(sorted(VERDICTS))), st.booleans())
def test_exit_code_is_the_worst(codes, configuration_error):
    expected = 2 if configuration_error else 3 if 3 in codes else 1 if 1 in codes else 0
    assert exit_code((VERDICTS[code] for code in codes), configuration_error=configuration_error) == expected


@given(CLASSES, st.booleans(), st.booleans(), st.booleans())
def test_every_gate_has_a_need_and_a_reason_where_it_has_none(class_, ours, row_invariant, task):
    needs = applicability(class_, EngineTraits(ours=ours, row_invariant=row_invariant), task=task, floor=None)
    assert tuple(needs) == GATES
    assert all(need.reason for need in needs.values() if need.level == "not_applicable")
    assert needs["state_pollution"].required


@given(CLASSES, st.booleans(), st.booleans(), st.booleans())
def test_elsewhere_nothing_exact_binds_and_near_ties_bind_in_its_place(class_, ours, row_invariant, task):
    needs = applicability(class_, EngineTraits(ours=ours, row_invariant=row_invariant), task=task, floor=None)
    moved = elsewhere(needs)
    exact = ("byte_parity", "logit_digest")
    assert tuple(moved) == GATES
    assert not any(moved[gate].required for gate in exact)
    assert moved["lossless"].required == any(needs[gate].required for gate in (*exact, "lossless"))
    rest = {gate: need for gate, need in moved.items() if gate not in (*exact, "lossless")}
    assert rest == {gate: needs[gate] for gate in rest}


def test_the_table_is_complete():
    assert {tuple(row) for row in TABLE.values()} == {STRENGTH}


@given(OUTPUTS, OUTPUTS)
def test_parity_is_symmetric_and_exact(ours, theirs):
    a, b = probe(ours), probe(theirs)
    there, back = (byte_parity.compare(*pair, required=True) for pair in ((a, b), (b, a)))
    same = (ours.ids, ours.text, ours.finish_reason) == (theirs.ids, theirs.text, theirs.finish_reason)
    assert there.status == back.status == ("pass" if same else "fail")
    positions = [[d["position"] for d in gate.evidence["divergences"]] for gate in (there, back)]
    assert positions[0] == positions[1]


@given(IDS, IDS)
def test_a_strict_prefix_fails_where_it_ends(head, tail):
    gate = byte_parity.compare(probe(output("p0", head)), probe(output("p0", head + tail)), required=True)
    assert gate.status == "fail"
    assert gate.evidence["divergences"][0]["position"] == len(head)


@given(OUTPUTS, OUTPUTS)
def test_digests_are_equal_exactly_when_their_rows_are(ours, theirs):
    gate = logit_digest.compare(probe(ours), probe(theirs), required=True)
    assert (gate.status == "pass") == (ours.digest == theirs.digest)


@given(st.floats(1, 9), st.floats(1, 9))
def test_drift_is_symmetric(a, b):
    x, y = Accept(length=a, source="measured"), Accept(length=b, source="measured")
    there = accept_drift.compare(x, y, bound=0.05, required=True)
    assert there.status == accept_drift.compare(y, x, bound=0.05, required=True).status
    assert (there.status == "pass") == (abs(a - b) <= 0.05 + 1e-9)


@given(st.integers(0, 6), st.integers(0, 6))
def test_mcnemar_against_every_outcome(lost, gained):
    """Count all equally likely outcomes at least as lopsided as the one seen."""
    outcomes = [sum(bits) for bits in product((0, 1), repeat=lost + gained)]
    centre = (lost + gained) / 2
    extreme = sum(abs(seen - centre) >= abs(lost - centre) for seen in outcomes)
    assert mcnemar_exact(lost, gained) == pytest.approx(extreme / len(outcomes))


@given(st.integers(0, 300), st.integers(0, 300))
def test_mcnemar_against_scipy(lost, gained):
    expected = binomtest(lost, lost + gained).pvalue if lost + gained else 1.0
    assert mcnemar_exact(lost, gained) == pytest.approx(expected)


@given(st.integers(0, 499), st.integers(0, 499), st.integers(1, 499))
def test_too_few_questions_never_pass_and_never_fail(before, after, questions):
    gate = task_score.compare(answers(before, questions), answers(after, questions), floor=0.99, required=True)
    assert gate.status == "not_applicable"


@given(st.integers(0, 600), st.integers(0, 600))
def test_more_right_answers_never_fail_the_task(before, after):
    gate = task_score.compare(answers(before, 600), answers(after, 600), floor=None, required=True)
    assert gate.status == "pass" or after < before


@given(st.floats(width=32, allow_nan=False))
def test_float32_bits_survive_json(value):
    assert float32_bits(json.loads(json.dumps(value))) == float32_bits(value)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=300))
def test_the_grid_holds_ends_and_near_ties(margins):
    grid = digest_grid(margins)
    assert {0, len(margins) - 1} | set(near_ties(margins, 4)) <= set(grid)
    assert grid == tuple(sorted(set(grid)))
    assert grid[-1] < len(margins)
    assert min(margins) in [margins[row] for row in grid]


@given(OUTPUTS, st.floats(1, 9))
def test_evidence_survives_a_file(answer, length):
    evidence = CellEvidence(probe=probe(answer), accept=Accept(length=length, source="measured"), task=answers(3, 4))
    assert CellEvidence.from_json(json.loads(json.dumps(evidence.to_json()))) == evidence
