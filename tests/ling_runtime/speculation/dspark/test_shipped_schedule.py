"""Scheduled verification with the shipped draft of block 16: eight requests at once, half of them on unfamiliar text.

The cost table is given: a row adds 0.5 % of the time of a step with one row. Tokens are compared on the same steps,
for what a plan would have cut off of a step is known exactly from the step without a plan.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ling_runtime.calibration.collect import Recorder
from ling_runtime.calibration.session import Checkpoints, Session, held_out_prompts
from ling_runtime.speculation.dspark.calibration import confidences
from ling_runtime.speculation.dspark.cost import AdditiveTable, Curve
from ling_runtime.speculation.dspark.planner import CausalPlanner
from ling_runtime.speculation.dspark.schedule import Planned

if TYPE_CHECKING:
    from ling_runtime.executor.step import StepExecutor

pytestmark = pytest.mark.whole

SHIPPED = Path(__file__).parents[4] / "ling_runtime/checkpoints"
CHECKPOINTS = Checkpoints(
    target=str(SHIPPED / "ling_tiny"),
    draft=str(SHIPPED / "ling_tiny_dspark_16"),
    block_size=None,
    device="cpu",
    dtype="float32",
)
REQUESTS, DRAFTS, STEPS = 8, 16, 24
ROWS = REQUESTS * (DRAFTS + 1)
COST = AdditiveTable(1.0, Curve((1,), (0.0,)), Curve((1, ROWS), (0.0, 0.005 * (ROWS - 1))))


@pytest.fixture(scope="module")
def executor() -> StepExecutor:
    return CHECKPOINTS.executor(REQUESTS)


def prompts() -> list[list[int]]:
    chance = random.Random(6)
    strange = [[chance.randrange(4, 1000) for _ in range(64)] for _ in range(REQUESTS // 2)]
    return [ids[:320] for ids in CHECKPOINTS.encode(held_out_prompts(11, REQUESTS // 2))] + strange


def test_a_quarter_of_the_rows_is_saved_at_three_hundredths_of_the_tokens(executor: StepExecutor) -> None:
    recorder = Recorder()
    session = Session(executor, recorder, temperature=1.0)
    slots = [session.start(prompt, STEPS * (DRAFTS + 1)) for prompt in prompts()]
    planner = CausalPlanner(COST)
    planned = tokens = kept = 0
    for _ in range(STEPS):
        outputs = session.step(slots)
        lengths = planner.lengths(slots, confidences(recorder.said, [1.0] * DRAFTS).tolist())
        planned += sum(lengths)
        tokens += sum(len(outputs[slot].tokens) for slot in slots)
        kept += sum(min(len(outputs[slot].tokens), n) for slot, n in zip(slots, lengths, strict=True))
    for slot in slots:
        session.end(slot)
    assert tokens / STEPS / REQUESTS > 5.0, "drafts are worth verifying at all"
    assert planned <= 0.75 * STEPS * ROWS
    assert kept >= 0.97 * tokens


def test_the_executor_runs_as_few_rows_as_planned(executor: StepExecutor) -> None:
    planned = Planned(temperatures=(1.0,) * DRAFTS, planner=CausalPlanner(COST), packed=True)
    session = Session(executor, planned, temperature=1.0)
    slots = [session.start(prompt, STEPS * (DRAFTS + 1)) for prompt in prompts()]
    executor.reset_counters()
    for _ in range(STEPS):
        session.step(slots)
    report = executor.speculation_report()
    assert report is not None
    assert report["verified_rows"] <= 0.75 * STEPS * ROWS
    assert report["committed_tokens"] > 5.0 * STEPS * REQUESTS
