"""A target that lost eight points and speaks as fluently as before: only the task score may judge such a change.

By default on recorded answers; slow, on a real server whose weights carry noise, as much of it as a scan finds.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from builds import cell, gate
from fabricate import answers
from toy_client import ToyClient
from toy_run import SPEC, run

from experiments.server import Server
from experiments.spec import TaskSpec
from experiments.tasks import gsm8k
from experiments.workloads import problems
from gates.evidence import TaskAnswers

TASK = TaskSpec(name="gsm8k", num_questions=500, parallel=8)
RIGHT = 460
EIGHT_POINTS = 0.05, 0.12
"""Share of questions to be lost, give or take what a scan of 100 can tell."""


def changed(*, lost: int, gained: int) -> TaskAnswers:
    """Against 500 recorded answers of which the first 460 are right."""
    correct = [index < RIGHT for index in range(500)]
    correct[:lost] = [False] * lost
    correct[RIGHT : RIGHT + gained] = [True] * gained
    return replace(answers(RIGHT, 500), correct=tuple(correct))


@pytest.mark.parametrize(
    ("lost", "gained", "verdict"),
    [
        (40, 0, "reject"),
        (60, 20, "reject"),
        (80, 40, "reject"),
        (5, 0, "inconclusive"),
        (30, 30, "inconclusive"),
        (20, 40, "inconclusive"),
    ],
)
def test_eight_points_are_rejected_however_many_answers_change(golden, lost, gained, verdict):
    baseline = replace(golden, task=answers(RIGHT, 500))
    quantised = replace(SPEC, task=TASK, model=replace(SPEC.model, revision="quantised"))
    gates, _, decision = run(ToyClient(), baseline, spec=quantised, task=changed(lost=lost, gained=gained))
    assert decision.verdict == verdict
    assert f"{lost} lost, {gained} gained of 500" in gates["task_score"].reason
    assert gates["byte_parity"].reason == "a model change"
    assert decision.rule == ("gate:task_score" if verdict == "reject" else "no_ab")


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(3600)
def test_noise_on_real_weights_is_rejected_for_its_score_alone(tmp_path):
    few = replace(TASK, num_questions=100)
    score, _ = asked("none", few, tmp_path)
    amount = scan(score.accuracy, few, tmp_path)
    noisy = f"worse_target={amount}"
    with Server(cell("none"), log=tmp_path / "clean.log") as server:
        server.wait_ready(60)
        _, before = ask(server, TASK)
        baseline = gate(server.client, cell("none", task=TASK), task=before)
    spec = cell(noisy, task=TASK, model=replace(cell().model, revision="noisy"))
    with Server(spec, log=tmp_path / "noisy.log") as server:
        server.wait_ready(60)
        score, after = ask(server, TASK)
        build = gate(server.client, spec, baseline.evidence, task=after)
    assert (score.invalid, score.truncation_rate) == (pytest.approx(0, abs=0.02), pytest.approx(0, abs=0.02))
    assert build.failed == {"task_score"}
    assert (build.verdict.verdict, build.verdict.rule) == ("reject", "gate:task_score")


def scan(accuracy: float, few: TaskSpec, tmp_path) -> float:
    """Bisects for the noise that costs eight points."""
    low, high = 0.0, 0.4
    for _ in range(8):
        amount = (low + high) / 2
        score, _ = asked(f"worse_target={amount}", few, tmp_path)
        lost = accuracy - score.accuracy
        if EIGHT_POINTS[0] <= lost <= EIGHT_POINTS[1]:
            return amount
        low, high = (amount, high) if lost < EIGHT_POINTS[0] else (low, amount)
    pytest.fail(f"no noise costs eight points; the last, {amount}, cost {lost}")


def asked(fault: str, task: TaskSpec, tmp_path) -> tuple[gsm8k.Score, TaskAnswers]:
    with Server(cell(fault), log=tmp_path / "scan.log") as server:
        server.wait_ready(60)
        return ask(server, task)


def ask(server: Server, task: TaskSpec) -> tuple[gsm8k.Score, TaskAnswers]:
    rows = problems(TASK.seed, TASK.num_shots + TASK.num_questions)
    score, marked = gsm8k.run(server.client, rows, task, lambda _: None)
    answered = TaskAnswers(
        name=score.name,
        data_hash=f"{TASK.seed}:{score.questions}",
        correct=tuple(answer.correct for answer in marked),
        invalid_rate=score.invalid,
        stop_rate=score.stop_rate,
        truncation_rate=score.truncation_rate,
    )
    return score, answered
