"""The soak of an executor: in short on the CPU, in full on a card, and that it would notice."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.ling_runtime.interpreted import DEVICE  # isort: skip - before anything of Triton

from ling_runtime.executor.build import ExecutorSettings, build_executor, load_executor
from ling_runtime.executor.graph_settings import GraphSettings
from ling_runtime.executor.graphs import DEVICE_VARIANTS
from ling_runtime.weights import initialise
from tests.ling_runtime.soak.steps import SHIPPED, Limits, Reading, Soak, problems, soak

if TYPE_CHECKING:
    from ling_runtime.config import ModelConfig
    from ling_runtime.executor.step import StepExecutor

NEVER_SLOW = Limits(drift=1e9)
SEED = 1


def small(config: ModelConfig, **settings: Any) -> StepExecutor:
    return build_executor(
        config,
        initialise(config, seed=3),
        ExecutorSettings(num_steps=2, max_requests=3, context_length=512, device=str(DEVICE), **settings),
    )


@pytest.mark.whole
def test_an_eager_executor_loses_nothing(small_config: ModelConfig) -> None:
    report = soak(small(small_config), steps=60, readings=2, most=3, limits=NEVER_SLOW)
    assert report["problems"] == []
    assert report["requests"]["ended"] > 3
    assert report["requests"]["sampled"] > 0


@pytest.mark.slow
@pytest.mark.usefixtures("interpreter")
def test_graphs_that_run_ahead_lose_nothing_in_a_few_steps(small_config: ModelConfig) -> None:
    """The device's operators, for which the interpreter takes its time: joins, ends, cancellations."""
    limits = {"expert_swiglu_limit_list": (0.0, 0.4), "share_expert_swiglu_limit_list": (0.0, 0.7)}
    config = replace(small_config, num_hidden_layers=2, num_attention_heads=2, **limits)
    executor = small(config, graphs=GraphSettings(overlap=True), kernels=DEVICE_VARIANTS)
    one = Soak(executor, seed=SEED, arrivals=0.7)
    for _ in range(8):
        one.step()
    one.end()
    held = executor.occupancy()
    assert (held.free_slots, held.free_pages) == (held.slots, held.pages)
    assert one.done["greedy"] + one.done["sampled"] == one.done["ended"] + one.done["cancelled"] > 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("drafts", [0, 3])
def test_two_thousand_mixed_steps_on_a_card(drafts: int) -> None:
    settings = ExecutorSettings(
        num_steps=drafts, max_requests=4, context_length=512, dtype="bfloat16", device="cuda",
        graphs=GraphSettings(overlap=True), kernels=DEVICE_VARIANTS,
    )  # fmt: skip
    report = soak(load_executor(str(SHIPPED), settings), steps=2000, readings=12, most=4, limits=Limits())
    assert report["problems"] == []


def readings(**changes: Any) -> list[Reading]:
    """Twelve readings of an executor that is well; `changes` are functions of the number."""
    return [
        Reading(
            **{
                "step": 100 * i, "step_ms": 2.0 + 0.3 * (i % 3), "allocated_mb": 50.0, "lost_slots": 0, "lost_pages": 0,
                "answer": (1, 2, 3),
            }
            | {key: change(i) for key, change in changes.items()}
        )
        for i in range(12)
    ]  # fmt: skip


def test_an_executor_that_is_well_has_no_problems() -> None:
    assert problems(readings(), Limits()) == []


@pytest.mark.parametrize(
    ("named", "changes"),
    [
        ("1 slots, 0 pages", {"lost_slots": lambda i: int(i == 7)}),
        ("0 slots, 2 pages", {"lost_pages": lambda i: 2 * (i == 11)}),
        ("another greedy answer", {"answer": lambda i: (1, 2, 3 + (i == 11))}),
        ("device memory grew", {"allocated_mb": lambda i: 50.0 + 0.2 * i}),
        ("steps became", {"step_ms": lambda i: 2.0 + 0.02 * i}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_goes_wrong_in_an_executor_is_named(named: str, changes: dict[str, Any]) -> None:
    (found,) = problems(readings(**changes), Limits())
    assert named in found
