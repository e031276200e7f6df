"""Scheduled verification in the executor: fewer rows, the same tokens."""

from __future__ import annotations

import dataclasses
import json
import random
import types
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ling_runtime.config import ConfigError, ModelConfig
from ling_runtime.executor.build import ExecutorSettings, load_executor
from ling_runtime.executor.draft import DraftSettings
from ling_runtime.executor.interface import GREEDY
from ling_runtime.memory.window import Window
from ling_runtime.speculation.dspark.artifact import write
from ling_runtime.speculation.dspark.cost import AdditiveTable, Curve
from ling_runtime.speculation.dspark.identity import identity_of
from ling_runtime.speculation.dspark.planner import planner_for
from ling_runtime.speculation.dspark.schedule import Planned, ScheduleSettings
from ling_runtime.weights import save
from tests.ling_runtime.executor.driving import advance, generate, prompt_of, start, warm
from tests.ling_runtime.executor.oracle import plant

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from ling_runtime.executor.interface import RowSampling
    from ling_runtime.executor.step import StepExecutor
    from tests.ling_runtime.conftest import WriteDraft
    from tests.ling_runtime.executor.driving import Build, Stream

pytestmark = pytest.mark.whole

TOKENS = 40
GAMMA = 8
SLOPE = AdditiveTable(1.0, Curve((1,), (0.0,)), Curve((1, 73), (0.0, 4.0)))


@dataclasses.dataclass
class Drawn:
    """Lengths drawn from a request's slot and the number of its step: they know nothing of neighbours."""

    packed: bool
    about = types.MappingProxyType({"drawn": True})

    def __post_init__(self) -> None:
        self.steps: dict[int, int] = {}

    def lengths(self, slots: Sequence[int], confidence: Tensor) -> tuple[int, ...]:
        assert confidence.shape == (len(slots), GAMMA)
        for slot in slots:
            self.steps[slot] = self.steps.get(slot, 0) + 1
        return tuple(random.Random(f"{slot} {self.steps[slot]}").randint(1, GAMMA + 1) for slot in slots)

    def forget(self, slot: int) -> None:
        self.steps.pop(slot, None)


@pytest.fixture
def dspark(build: Build, write_draft: WriteDraft) -> Build:
    def make(schedule: Any = None, **settings: Any) -> StepExecutor:
        executor = build(draft=DraftSettings(path=write_draft(), confidence=True, **settings))
        executor.schedule = schedule
        return executor

    return make


def together(
    executor: StepExecutor,
    sampling: Sequence[RowSampling],
    truth: Sequence[Sequence[int]] | None = None,
    right: int = 0,
) -> list[Stream]:
    """Eight requests of different lengths that start one after the other."""
    streams: list[Stream] = []
    for i, one in enumerate(sampling):
        streams.append(start(executor, prompt_of(i, 5 + 11 * i), TOKENS, one))
    if truth:
        plant(executor, {s.slot: prompt_of(i, 5 + 11 * i) + list(truth[i]) for i, s in enumerate(streams)}, right)
    for joined in range(1, len(streams)):
        advance(executor, streams[:joined])
    while running := [s for s in streams if len(s.tokens) < TOKENS]:
        advance(executor, running)
    return streams


def report(executor: StepExecutor) -> dict[str, Any]:
    counted = executor.speculation_report()
    assert counted is not None
    return counted


@pytest.mark.parametrize("right", [0, 3, 8])
def test_greedy_output_is_that_of_no_speculation_with_fewer_rows(build: Build, dspark: Build, right: int) -> None:
    plain = [generate(build(), prompt_of(i, 5 + 11 * i), TOKENS) for i in range(8)]
    rows = {}
    for packed in (False, True):
        executor = dspark(schedule=Drawn(packed))
        streams = together(executor, [GREEDY] * 8, [one.tokens for one in plain], right)
        for stream, one in zip(streams, plain, strict=True):
            assert stream.tokens[:TOKENS] == one.tokens
            assert stream.logprobs[:TOKENS] == one.logprobs
        rows[packed] = report(executor)
    assert rows[True]["verified_rows"] == rows[True]["planned_rows"] == rows[False]["planned_rows"]
    assert rows[False]["verified_rows"] == 9 * rows[False]["verify_requests"]
    assert rows[True]["committed_tokens"] == rows[False]["committed_tokens"]
    assert rows[True]["verified_rows"] < 0.65 * rows[False]["verified_rows"]


@pytest.mark.parametrize("acceptance", ["classic", "block"])
def test_sampled_requests_see_neither_neighbours_nor_the_mode(dspark: Build, acceptance: str) -> None:
    sampling = [warm(i) if i % 3 else GREEDY for i in range(8)]
    modes = [together(dspark(schedule=Drawn(packed), acceptance=acceptance), sampling) for packed in (False, True)]
    for i, (capped, packed) in enumerate(zip(*modes, strict=True)):
        executor = dspark(schedule=Drawn(packed=True), acceptance=acceptance)
        while executor._caches._free[-1] != capped.slot:  # lengths are drawn by slot
            executor._caches.reserve(1)
        alone = generate(executor, prompt_of(i, 5 + 11 * i), TOKENS, sampling[i])
        assert capped.tokens[:TOKENS] == packed.tokens[:TOKENS] == alone.tokens
        assert capped.logprobs[:TOKENS] == packed.logprobs[:TOKENS] == alone.logprobs
        assert capped.steps == packed.steps == alone.steps


@pytest.mark.parametrize("scheduler", ["causal", "global"])
def test_a_real_planner_verifies_fewer_rows_and_never_none(build: Build, dspark: Build, scheduler: Any) -> None:
    plain = [generate(build(), prompt_of(i, 5 + 11 * i), TOKENS) for i in range(8)]
    planned = Planned(temperatures=(1.0,) * GAMMA, planner=planner_for(scheduler, SLOPE), packed=True)
    executor = dspark(schedule=planned)
    streams = together(executor, [GREEDY] * 8)
    assert [s.tokens[:TOKENS] for s in streams] == [one.tokens for one in plain]
    counted = report(executor)
    assert counted["verify_requests"] < counted["verified_rows"] < 8 * counted["verify_requests"]


def test_a_slot_s_next_request_has_a_schedule_of_its_own(dspark: Build) -> None:
    executor = dspark(schedule=Drawn(packed=True))
    before, after = (generate(executor, prompt_of(1, 20), TOKENS, warm(5)) for _ in range(2))
    assert (before.slot, before.tokens, before.steps) == (after.slot, after.tokens, after.steps)


def test_a_ragged_window_lays_out_what_it_has() -> None:
    window = Window(slots=(3, 1, 2), starts=(5, 30, 16), rows=4, counts=(2, 4, 1))
    assert window.real_rows == 7
    assert window.positions.tolist() == [5, 6, 30, 31, 32, 33, 16]
    spread = window.spread(torch.arange(16.0))
    assert [spread[b, :n].tolist() for b, n in enumerate((2, 4, 1))] == [[0, 1], [2, 3, 4, 5], [6]]
    assert window.pack(spread).tolist() == list(range(7))
    assert (window.chunks, window.closed_chunks) == (2, 1)
    even = dataclasses.replace(window, counts=(4, 4, 4))
    assert torch.equal(even.positions, dataclasses.replace(window, counts=None).positions)


# From files -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def target(small_json: dict[str, Any], small_tensors: dict[str, Tensor], tmp_path_factory: Any) -> str:
    path: Path = tmp_path_factory.mktemp("target")
    save(path, small_tensors, ModelConfig.from_dict(small_json))
    (path / "config.json").write_text(json.dumps(small_json))
    return str(path)


def load(target: str, draft: str, kernels: Mapping[str, str] | None = None, **schedule: Any) -> StepExecutor:
    wished = DraftSettings(path=draft, schedule=ScheduleSettings(**schedule))
    settings = ExecutorSettings(draft=wished, context_length=100, max_requests=2, kernels=kernels or {})
    return load_executor(target, settings)


def artifacts(path: Path, target: str, draft: str, gamma: int) -> dict[str, str]:
    identity = identity_of(target, draft, gamma, device="cpu", dtype="float32", kernels={})
    write(path / "sts.json", identity, {"temperatures": [2.0] * gamma, "num_samples": 5})
    write(path / "cost.json", identity, SLOPE.to_json())
    return {"temperatures_path": str(path / "sts.json"), "cost_path": str(path / "cost.json")}


def test_artifacts_that_fit_are_used_and_reported(target: str, write_draft: WriteDraft, tmp_path: Path) -> None:
    draft = write_draft()
    executor = load(target, draft, mode="compact", **artifacts(tmp_path, target, draft, GAMMA))
    assert isinstance(executor.schedule, Planned)
    assert executor.schedule.temperatures == (2.0,) * GAMMA
    generate(executor, prompt_of(1, 20), 20)
    counted = report(executor)
    assert counted["verified_rows"] < 9 * counted["verify_requests"]
    assert counted["sts"]["num_samples"] == 5
    assert counted["cost_table"]["path"].endswith("cost.json")


def test_a_cost_table_is_of_the_kernels_that_run(target: str, write_draft: WriteDraft, tmp_path: Path) -> None:
    draft, other = write_draft(), {"moe_align": "pair_axis"}
    files = artifacts(tmp_path, target, draft, GAMMA)
    with pytest.raises(ConfigError, match="made with kernels moe_align=reference, but here it is moe_align=pair_axis"):
        load(target, draft, other, mode="compact", **files)
    assert load(target, draft, other, mode="cap-accept", **files).schedule is not None, "no table is of its steps"


def test_without_artifacts_every_row_is_verified(
    target: str, write_draft: WriteDraft, caplog: pytest.LogCaptureFixture
) -> None:
    executor = load(target, write_draft(), mode="compact", scheduler="global")
    generate(executor, prompt_of(1, 20), 20)
    counted = report(executor)
    assert counted["verified_rows"] == 9 * counted["verify_requests"]
    assert (counted["sts"], counted["cost_table"]) == (None, None)
    assert "every row is verified" in caplog.text


def test_artifacts_of_another_draft_are_refused_or_fallen_back_from(
    target: str, write_draft: WriteDraft, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    others = artifacts(tmp_path, target, write_draft(markov_head_type="gated"), GAMMA)
    with pytest.raises(ConfigError, match="made with draft"):
        load(target, write_draft(), mode="cap-accept", **others)
    executor = load(target, write_draft(), mode="cap-accept", allow_fallback=True, **others)
    assert "IS NOT USED" in caplog.text
    assert isinstance(executor.schedule, Planned)
    assert executor.schedule.temperatures == (1.0,) * GAMMA
    assert load(target, write_draft(), mode="static", **others).schedule is None


def test_a_schedule_needs_the_confidence_head(target: str, write_draft: WriteDraft) -> None:
    with pytest.raises(ConfigError, match="enable_confidence_head=false"):
        load(target, write_draft(enable_confidence_head=False), mode="compact")
