"""Which of the runs differ says what is wrong, and what an engine promises says which of them count."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fabricate import output, probe
from toy_client import ToyClient
from toy_run import SHORT, SPEC, run

from experiments.spec import EngineSpec
from gates import state_pollution
from gates.evidence import Pollution
from gates.state_pollution import LOAD_TOKENS

BEFORE = probe().outputs
BESIDE = tuple(
    replace(each, ids=each.ids[:LOAD_TOKENS], text="", digest=each.digest[:1]) for each in BEFORE
)  # their beginnings, with the digest row at position 0
OTHER_TOKEN = output("p1", (*range(1, 256), 999))
OTHER_BITS = replace(BEFORE[1], digest=(replace(BEFORE[1].digest[0], bits=(3, 1)), *BEFORE[1].digest[1:]))


def compare(*, exact: bool = True, **runs):
    equal = {"during_load": BESIDE, "after_load": BEFORE, "after_flush": BEFORE}
    pollution = Pollution(load_requests=4, before=BEFORE, **equal | runs)
    return state_pollution.compare(pollution, exact=exact, required=True)


def changed(outputs, other):
    return tuple(other if each.prompt == other.prompt else each for each in outputs)


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ({"during_load"}, "neighbours in a batch"),
        ({"after_load"}, "until a flush"),
        ({"during_load", "after_load"}, "until a flush"),
        ({"after_flush"}, "without logprobs"),
        ({"after_load", "after_flush"}, "outlives the flush"),
    ],
)
def test_the_runs_that_differ_classify_the_fault(runs, words):
    beside = changed(BESIDE, replace(BESIDE[1], ids=(999, *BESIDE[1].ids[1:])))
    gate = compare(**{name: beside if name == "during_load" else changed(BEFORE, OTHER_TOKEN) for name in runs})
    assert gate.status == "fail"
    assert words in gate.reason
    assert "p1 at" in gate.reason


def test_equal_tokens_with_other_bits_fail_where_bits_are_promised():
    polluted = changed(BEFORE, OTHER_BITS)
    gate = compare(after_load=polluted)
    assert (gate.status, "p1 at 0: logit bits" in gate.reason) == ("fail", True)
    assert compare(after_load=polluted, exact=False).status == "pass"


def test_neighbours_are_only_shown_where_rows_are_not_invariant():
    beside = changed(BESIDE, replace(BESIDE[1], ids=(999, *BESIDE[1].ids[1:])))
    gate = compare(during_load=beside, exact=False)
    assert gate.status == "pass"
    assert gate.evidence["during_load"]


@pytest.mark.parametrize("ids", [(), BESIDE[1].ids[:-1]])
def test_an_answer_cut_short_by_the_load_is_no_match(ids):
    assert compare(during_load=changed(BESIDE, replace(BESIDE[1], ids=ids))).status == "fail"


def test_no_two_runs_ask_in_the_same_way():
    client = ToyClient()
    run(client)
    greedy = [call for call in client.calls if call["temperature"] == 0.0]
    asked = SHORT.parity_prompts + 2  # and the canaries
    first, beside, after_load, after_flush = (
        [call["text"] for call in greedy[start : start + count]]
        for start, count in zip(
            (len(greedy) - 3 * asked - SHORT.pollution_requests, len(greedy) - 2 * asked - SHORT.pollution_requests,
             len(greedy) - 2 * asked, len(greedy) - asked),
            (asked, SHORT.pollution_requests, asked, asked), strict=True)
    )  # fmt: skip
    assert after_load == first[::-1]
    assert after_flush == first
    assert sorted(beside) == sorted(first[-SHORT.pollution_requests :])
    assert all(call["stream"] and "return_logprob" not in call for call in greedy[-asked:])


def test_an_engine_that_rounds_is_not_held_to_bits():
    rounding = replace(SPEC, engine=EngineSpec(name="sglang"))
    gates, _, _ = run(ToyClient(fault="noise", amount=1e-6), spec=rounding)
    assert gates["state_pollution"].status == "pass"
