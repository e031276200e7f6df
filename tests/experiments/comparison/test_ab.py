from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from simulated import QUIET, REQUESTS, Servers

from analysis.ab import compare
from experiments.activation import Activation
from experiments.comparison import ab, figures
from experiments.comparison.arms import Room
from experiments.comparison.ledger import percent
from experiments.comparison.runner import prepared, question
from experiments.comparison.spec import Declared
from experiments.comparison.timing import Rules, Timed, run
from experiments.spec import StudySpec
from gates.applicability import GATES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from analysis.ab import ABResult
    from experiments.comparison.decision import Question
    from experiments.spec import CellSpec

ASKED = {"kernels.router": "bf16"}
WORKING = {arm: Activation(ASKED, ASKED) for arm in ("baseline", "candidate")}
PASSED = {name: {"status": "pass", "required": True, "reason": "", "evidence": {}} for name in GATES}
FLOOR = 0.01


@pytest.fixture
def asked(make_cell: Callable[..., CellSpec], tmp_path: Path) -> Callable[..., Question]:
    def make(**declared: Any) -> Question:
        cell = make_cell()
        study = StudySpec(study="s", output_dir=str(tmp_path))
        said = Declared(**declared)
        arms = [
            prepared(name, spec, study, base=cell, declared=said)
            for name, spec in (("a", cell), ("b", replace(cell, env={"SWITCH": "1"})))
        ]
        return question("switch", "ab", said, (), *arms)

    return make


def timed(step: float) -> Timed:
    servers = Servers(QUIET, seed=1, step=step)
    rules = Rules(floor=FLOOR, budget_s=120.0, prompts=2, seed=3)
    return run(servers.slot, REQUESTS, rules, told=lambda block, answers: None, clock=servers.clock)


def result(found: Timed) -> ABResult:
    return compare(found.pairs, seed=3).result("step_time", FLOOR, same_arms=False)


def test_gates_that_passed_and_a_slower_step_are_a_rejection(asked: Callable[..., Question]) -> None:
    candidate = {"gates": PASSED, "flags": []}
    verdict = ab.judged(asked(), candidate, [], result(timed(math.log(1.1))))
    assert (verdict.verdict, verdict.rule) == ("reject", "slower")
    faster = ab.judged(asked(), candidate, [], result(timed(-math.log(1.1))))
    assert (faster.verdict, faster.rule) == ("keep", "faster")


def test_a_gate_without_a_result_lets_nothing_be_kept(asked: Callable[..., Question]) -> None:
    open_ = PASSED | {"task_score": PASSED["task_score"] | {"status": "not_run"}}
    verdict = ab.judged(asked(), {"gates": open_, "flags": []}, [], result(timed(-math.log(1.1))))
    assert (verdict.status, verdict.rule) == ("invalid", "gate_not_run")


def test_an_arm_that_was_not_what_it_should_be_makes_the_comparison_invalid(asked: Callable[..., Question]) -> None:
    found = timed(-math.log(1.1))
    broken = WORKING | {"candidate": Activation(ASKED, {})}
    faults = [*ab.faults(SimpleNamespace(activation=broken), found.answers)]  # type: ignore[arg-type]
    verdict = ab.judged(asked(), {"gates": PASSED, "flags": []}, faults, result(found))
    assert (verdict.status, verdict.verdict, verdict.rule) == ("invalid", None, "inactive")
    assert "candidate: kernels.router=bf16 was asked for; active: None" in verdict.reason
    assert [*ab.faults(SimpleNamespace(activation=WORKING), found.answers)] == []  # type: ignore[arg-type]


def test_arms_that_were_asked_different_prompts_are_not_compared() -> None:
    answers = [replace(one, prompt="other") if one.arm == "candidate" else one for one in timed(0.0).answers]
    (fault,) = ab.faults(SimpleNamespace(activation=WORKING), answers)  # type: ignore[arg-type]
    assert fault.class_ == "ruler"


def test_equality_that_was_expected_and_holds_is_kept(asked: Callable[..., Question]) -> None:
    servers = Servers(QUIET, seed=2)
    rules = Rules(floor=FLOOR, margin=0.03, budget_s=400.0, prompts=2, seed=3)
    found = run(servers.slot, REQUESTS, rules, told=lambda block, answers: None, clock=servers.clock)
    said = asked(expect="equal", equal_margin=0.03)
    verdict = ab.judged(said, {"gates": PASSED, "flags": []}, [], result(found))
    assert (found.stop, verdict.verdict, verdict.rule) == ("equal", "keep", "equal")


def test_a_change_left_out_is_judged_by_its_speed_alone(asked: Callable[..., Question]) -> None:
    left_out = replace(asked(), kind="leave_one_out")
    assert ab.judged(left_out, None, [], result(timed(math.log(1.1)))).rule == "slower"


def test_two_servers_are_alive_at_once_only_with_room_to_spare() -> None:
    assert Room(held_mib=400, left_mib=500).for_two
    assert not Room(held_mib=400, left_mib=499).for_two


def test_figures_of_an_arm_are_ratios_of_its_sums() -> None:
    found = timed(math.log(1.1))
    shown = figures.by_arm(found.pairs)
    ours = [one for one in found.answers if one.arm == "baseline"]
    steps = sum(one.steps for one in ours)
    assert shown["baseline"]["step_ms"] == pytest.approx(1e3 * sum(one.decode_s for one in ours) / steps)
    assert shown["baseline"]["accept_length"] == pytest.approx(sum(one.tokens - 1 for one in ours) / steps)
    assert shown["candidate"]["step_ms"] / shown["baseline"]["step_ms"] == pytest.approx(1.1, rel=0.03)


def test_an_end_that_is_not_known_is_shown_as_that() -> None:
    assert percent({"estimate": 0.0, "low": None, "high": math.log(1.5)}) == "+0.0% [?, +50.0%]"
    assert percent(None) == "-"
