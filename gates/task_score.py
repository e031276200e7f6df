"""Did the change cost answers: paired by question, exact, and only when there are enough of them.

Invalid, stop and truncation rates stand beside the score, because an answer cut off is no wrong answer. The surprise:
fewer than 500 questions give neither pass nor fail; five answers lost and none gained is still p = 0.06.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from analysis.statistics import mcnemar_exact
from gates.evidence import GateResult

if TYPE_CHECKING:
    from gates.evidence import Status, TaskAnswers

NAME = "task_score"
ENOUGH = 500
ALPHA = 0.05


def compare(baseline: TaskAnswers | None, candidate: TaskAnswers, *, floor: float | None, required: bool) -> GateResult:
    """`baseline` None: only the floor binds."""

    def result(status: Status, reason: str, **evidence: Any) -> GateResult:
        shown = _figures(candidate) | evidence | {"floor": floor}
        return GateResult(name=NAME, status=status, required=required, reason=reason, evidence=shown)

    questions = len(candidate.correct)
    if baseline is not None and (baseline.name, baseline.data_hash) != (candidate.name, candidate.data_hash):
        return result("not_run", "the questions differ from the baseline's")
    paired = {} if baseline is None else _paired(baseline, candidate)
    if questions < ENOUGH:
        return result("not_applicable", f"too few to decide: {questions} of {ENOUGH} questions", **paired)
    if floor is not None and candidate.accuracy < floor:
        return result("fail", f"accuracy {candidate.accuracy:.3f} is below the floor {floor:.3f}", **paired)
    if not paired:
        return result("pass", f"accuracy {candidate.accuracy:.3f} of {questions} questions")
    changes = f"{paired['lost']} lost, {paired['gained']} gained of {questions}, p = {paired['p_value']:.2g}"
    worse = paired["lost"] > paired["gained"] and paired["p_value"] < ALPHA
    return result("fail" if worse else "pass", changes, **paired)


def _paired(baseline: TaskAnswers, candidate: TaskAnswers) -> dict[str, Any]:
    pairs = list(zip(baseline.correct, candidate.correct, strict=True))
    lost, gained = pairs.count((True, False)), pairs.count((False, True))
    return {
        "baseline_accuracy": baseline.accuracy,
        "lost": lost,
        "gained": gained,
        "p_value": mcnemar_exact(lost, gained),
    }


def _figures(answers: TaskAnswers) -> dict[str, Any]:
    return {
        "questions": len(answers.correct),
        "correct": sum(answers.correct),
        "invalid_rate": answers.invalid_rate,
        "stop_rate": answers.stop_rate,
        "truncation_rate": answers.truncation_rate,
    }
