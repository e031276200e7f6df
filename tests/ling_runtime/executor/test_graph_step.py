"""The executor on graphs says what the eager one says, and lets the two kinds of step alternate."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.ling_runtime.interpreted import DEVICE  # isort: skip - before anything of Triton

from ling_runtime.config import ConfigError
from ling_runtime.executor.build import ExecutorSettings, build_executor
from ling_runtime.executor.graph_settings import GraphSettings
from ling_runtime.executor.graphs import DEVICE_VARIANTS
from ling_runtime.executor.interface import GREEDY, Admission
from ling_runtime.ops.triton.launch import fastest
from ling_runtime.weights import initialise
from tests.ling_runtime.executor.driving import prompt_of, warm

if TYPE_CHECKING:
    from ling_runtime.config import ModelConfig
    from ling_runtime.executor.step import StepExecutor


pytestmark = pytest.mark.usefixtures("interpreter")


def smaller(config: ModelConfig) -> ModelConfig:
    """A layer of each kind with few heads: the interpreter runs programs in turn."""
    limits = {"expert_swiglu_limit_list": (0.0, 0.4), "share_expert_swiglu_limit_list": (0.0, 0.7)}
    return replace(config, num_hidden_layers=2, num_attention_heads=2, **limits)


def build(
    config: ModelConfig,
    steps: int,
    *,
    graphs: GraphSettings | None,
    kernels: dict[str, str],
) -> StepExecutor:
    two_layers = smaller(config)
    settings = ExecutorSettings(
        num_steps=steps,
        max_requests=3,
        context_length=96,
        device=str(DEVICE),
        graphs=graphs,
        kernels=kernels,
    )
    return build_executor(two_layers, initialise(two_layers, seed=3), settings)


def drive(executor: StepExecutor, rounds: int) -> list[list[int]]:
    """Two greedy requests, a sampled one that joins for the second round alone; tokens of the greedy ones."""

    def enter(seed: int, length: int, *, sampled: bool = False) -> int:
        sampling = warm(1) if sampled else GREEDY
        slot = executor.admit(Admission(prompt_of(seed, length), 24, sampling))
        executor.prefill(slot)
        return slot

    greedy = [enter(1, 14), enter(2, 9)]
    found: list[list[int]] = [[], []]
    for number in range(rounds):
        guest = [enter(3, 5, sampled=True)] if number == 1 else []
        outputs = executor.decode([*greedy, *guest])
        for tokens, slot in zip(found, greedy, strict=True):
            tokens.extend(outputs[slot].tokens)
        for slot in guest:
            executor.release(slot)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("steps", [0, 2])
def test_tokens_are_those_of_the_eager_executor(small_config: ModelConfig, steps: int) -> None:
    graphs = build(small_config, steps, graphs=GraphSettings(), kernels=DEVICE_VARIANTS)
    got = drive(graphs, 3)
    assert got == drive(build(small_config, steps, graphs=None, kernels={}), 3)
    report = {row["operator"]: row["calls"] for row in graphs.kernel_report()}
    assert all(report[operator] for operator in DEVICE_VARIANTS.keys() - {"moe", "router", "lm_head"}), (
        "these are inside moe_block"
    )


def served(executor: StepExecutor, counts: list[int]) -> list[list[int]]:
    """Greedy requests of so many tokens, two at a time: each leaves when it has them, and the next takes its place."""
    waiting = list(range(len(counts)))
    found: list[list[int]] = [[] for _ in counts]
    running: dict[int, int] = {}
    while waiting or running:
        while waiting and len(running) < 2:
            i = waiting.pop(0)
            slot = executor.admit(Admission(prompt_of(i, 7 + 3 * i), counts[i]))
            token = executor.prefill(slot).token
            assert token is not None
            running[slot], found[i] = i, [token]
        for slot, out in executor.decode(tuple(running)).items():
            found[running[slot]] += out.tokens
        for slot in [slot for slot, i in running.items() if len(found[i]) >= counts[i]]:
            executor.release(slot)
            del running[slot]
    return [tokens[:count] for tokens, count in zip(found, counts, strict=True)]


@pytest.mark.slow
def test_running_ahead_changes_no_token(small_config: ModelConfig) -> None:
    """Steps are read one call late while requests end and their slots are taken over; drafts of two in every step."""
    counts = [3, 9, 4, 6]
    running = build(small_config, 2, graphs=GraphSettings(overlap=True), kernels=DEVICE_VARIANTS)
    ahead = served(running, counts)
    assert ahead == served(build(small_config, 2, graphs=GraphSettings(), kernels=DEVICE_VARIANTS), counts)
    report = running.executor_report()
    assert (report["path"], report["overlap"], report["eager"]) == ("graphs", True, 0)
    assert 0 < report["slack"]["count"] < report["replayed"], "a first step has none before it to wait for"
    running.reset_counters()
    assert running.executor_report()["replayed"] == running.executor_report()["slack"]["count"] == 0


def test_graphs_without_device_variants_are_refused(small_config: ModelConfig) -> None:
    with pytest.raises(ConfigError, match=r"device variants of .*linear.*kernels\.OPERATOR=triton"):
        build(small_config, 0, graphs=GraphSettings(), kernels={})


@pytest.mark.skipif(fastest() != "off", reason="a card that has early launches")
def test_early_launches_need_a_card_that_has_them(small_config: ModelConfig) -> None:
    with pytest.raises(ConfigError, match=r"pdl=early: needs a card of compute capability 9\.0 or more; .*: off"):
        build(small_config, 0, graphs=GraphSettings(pdl="early"), kernels=DEVICE_VARIANTS)
