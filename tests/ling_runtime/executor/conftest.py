"""Executors over the small model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ling_runtime.executor.build import ExecutorSettings, build_executor

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.config import ModelConfig
    from ling_runtime.executor.step import StepExecutor
    from tests.ling_runtime.executor.driving import Build


@pytest.fixture
def build(small_config: ModelConfig, small_tensors: dict[str, Tensor]) -> Build:
    def make(**settings: Any) -> StepExecutor:
        return build_executor(small_config, small_tensors, ExecutorSettings(**settings))

    return make
