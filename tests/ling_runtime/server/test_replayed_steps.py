"""The server over the executor that a card has, in Triton's interpreter: steps are read one call late."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.ling_runtime.interpreted import DEVICE  # isort: skip - before anything of Triton

from dataclasses import replace

from ling_runtime.executor.build import ExecutorSettings, build_executor
from ling_runtime.executor.graph_settings import GraphSettings
from ling_runtime.executor.graphs import DEVICE_VARIANTS
from ling_runtime.weights import initialise

if TYPE_CHECKING:
    import httpx

    from ling_runtime.config import ModelConfig
    from ling_runtime.executor.step import StepExecutor

pytestmark = [pytest.mark.usefixtures("interpreter"), pytest.mark.slow, pytest.mark.timeout(1200)]
TOKENS = 5


def build(config: ModelConfig, simulated: float | None = None) -> StepExecutor:
    limits = {"expert_swiglu_limit_list": (0.0, 0.4), "share_expert_swiglu_limit_list": (0.0, 0.7)}
    two_layers = replace(config, num_hidden_layers=2, num_attention_heads=2, **limits)
    settings = ExecutorSettings(
        num_steps=2, max_requests=2, context_length=96, device=str(DEVICE), kernels=DEVICE_VARIANTS,
        graphs=GraphSettings(overlap=True, simulated_accept_length=simulated),
    )  # fmt: skip
    return build_executor(two_layers, initialise(two_layers, seed=3), settings)


def generate(in_process: Any, executor: StepExecutor, *, requests: int) -> tuple[list[Any], dict[str, Any]]:
    """Answers one after the other, and what the server then says of itself."""

    async def talk() -> tuple[list[Any], dict[str, Any]]:
        client: httpx.AsyncClient
        async with in_process(executor) as client:
            body = {
                "input_ids": [5, 9, 2, 7],
                "sampling_params": {"temperature": 0.0, "max_new_tokens": TOKENS, "ignore_eos": True},
            }
            answers = [(await client.post("/generate", json=body)).json() for _ in range(requests)]
            return answers, (await client.get("/server_info")).json()

    return asyncio.run(talk())


def test_every_step_but_a_request_s_first_was_queued_behind_another(in_process: Any, small_config: ModelConfig) -> None:
    (first, second), info = generate(in_process, build(small_config), requests=2)
    assert first["output_ids"] == second["output_ids"]
    assert len(first["output_ids"]) == TOKENS
    said = info["executor"]
    assert (said["path"], said["overlap"], said["eager"]) == ("graphs", True, 0)
    steps = sum(answer["meta_info"]["spec_verify_ct"] for answer in (first, second))
    assert info["steps"]["count"] == steps == said["slack"]["count"]
    assert said["replayed"] == steps + 2, "one too many for each request"
    assert info["host"]["engine_cores"] == info["host"]["process_cores"]


def test_simulated_acceptance_commits_what_it_was_told(in_process: Any, small_config: ModelConfig) -> None:
    executor = build(small_config, simulated=2.0)
    (answer,), _ = generate(in_process, executor, requests=1)
    assert answer["meta_info"]["spec_verify_ct"] == (TOKENS - 1) // 2, (
        "the first token is the prompt's, then two a step"
    )
    report = executor.speculation_report()
    assert report is not None
    assert report["simulated_accept_length"] == 2.0
