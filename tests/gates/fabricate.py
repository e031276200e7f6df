"""Evidence made by hand, small enough to see at a glance what a test puts in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from analysis.ab import ABResult
from analysis.logratio import LogRatio
from experiments.spec import CellSpec, EngineSpec, GateSpec, ModelSpec, SpeculationSpec, TaskSpec, WorkloadSpec
from gates.applicability import GATES
from gates.change import Change, ChangeClass
from gates.evidence import Digest, GateResult, Output, Probe, Prompt, Status, TaskAnswers
from ling_runtime.ops.registry import Numerics, Variant

PROMPTS = tuple(Prompt(name=f"p{i}", text=f"prompt {i}") for i in range(4))
NEXTN_3_4 = SpeculationSpec(algorithm="nextn", num_steps=3, num_draft_tokens=4)
NEXTN_5_6 = SpeculationSpec(algorithm="nextn", num_steps=5, num_draft_tokens=6)
DSPARK_8 = SpeculationSpec(algorithm="dspark", block_size=8)
LENGTH = 256


def variant(operator: str, name: str, numerics: Numerics, reason: str = "") -> Variant:
    return Variant(operator, name, numerics, reason, lambda: None)


VARIANTS = (
    variant("kda_verify", "reference", "reference"),
    variant("kda_verify", "fused", "bitwise"),
    variant("router", "reference", "reference"),
    variant("router", "bf16", "rounding", "logits in bfloat16"),
)


def cell(**changes: Any) -> CellSpec:
    base = CellSpec(
        engine=EngineSpec(),
        model=ModelSpec(name="ling_tiny", path="ckpt"),
        speculation=SpeculationSpec(),
        workload=WorkloadSpec(name="w"),
        task=TaskSpec(),
        gate=GateSpec(),
    )
    return replace(base, **changes)


def change(class_: ChangeClass) -> Change:
    return Change(class_=class_, parts=("something",), declared=None, reason=None)


def output(name: str, ids: tuple[int, ...], text: str | None = None, margin: float = 2.0, **fields: Any) -> Output:
    """Digest at the first and last position, with bits made from the ids."""
    rows = sorted({0, len(ids) - 1})
    digest = tuple(Digest(position=row, ids=(ids[row], 9), bits=(ids[row] + 7, 1)) for row in rows)
    values: dict[str, Any] = {
        "prompt": name,
        "ids": ids,
        "text": " ".join(map(str, ids)) if text is None else text,
        "finish_reason": "length",
        "matched": None,
        "margins": (margin,) * len(ids),
        "digest": digest,
    }
    return Output(**values | fields)


def probe(*outputs: Output) -> Probe:
    """Four equal-length greedy answers, those given in place of the default ones."""
    given = {output.prompt: output for output in outputs}
    ids = tuple(range(1, LENGTH + 1))
    answers = tuple(given.get(prompt.name, output(prompt.name, ids)) for prompt in PROMPTS)
    return Probe(prompts=PROMPTS, max_new_tokens=LENGTH, outputs=answers)


def one_token_differs(position: int, margin: float) -> tuple[Probe, Probe]:
    """Baseline and candidate that part at one position, where the baseline's top-2 margin is `margin`."""
    ids = list(range(1, LENGTH + 1))
    ours = output("p1", tuple(ids), margin=margin)
    ids[position] += 1000
    return probe(ours), probe(output("p1", tuple(ids)))


def answers(correct: int, questions: int, *, data_hash: str = "d") -> TaskAnswers:
    """The first `correct` questions right, the rest wrong."""
    return TaskAnswers(
        name="gsm8k",
        data_hash=data_hash,
        correct=tuple(index < correct for index in range(questions)),
        invalid_rate=0.0,
        stop_rate=1.0,
        truncation_rate=0.0,
    )


def result(name: str, status: Status, *, required: bool = True, reason: str = "because") -> GateResult:
    return GateResult(name=name, status=status, required=required, reason=reason)


def results(*given: GateResult) -> tuple[GateResult, ...]:
    """One result for each gate: those given, and passes."""
    by_name = {gate.name: gate for gate in given}
    return tuple(by_name.get(name, result(name, "pass")) for name in GATES)


def ab(
    *,
    step: tuple[float, float, float] = (0.0, -0.001, 0.001),
    tpot: tuple[float, float, float] = (0.0, -0.001, 0.001),
    accept: tuple[float, float, float] = (0.0, -0.001, 0.001),
    floor: float = 0.012,
    same_arms: bool = False,
) -> ABResult:
    """Log-ratios as (estimate, low, high)."""

    def ratio(values: tuple[float, float, float]) -> LogRatio:
        return LogRatio(estimate=values[0], low=values[1], high=values[2])

    figures = {"step_time": ratio(step), "tpot": ratio(tpot), "accept": ratio(accept)}
    return ABResult(**figures, floor=floor, mde=0.01, same_arms=same_arms)
