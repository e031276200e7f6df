"""The shipped miniature, read once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import ling_runtime
from ling_runtime.config import ModelConfig
from ling_runtime.tensor_table import tensor_specs
from ling_runtime.weights import load

if TYPE_CHECKING:
    from torch import Tensor


@pytest.fixture(scope="session")
def tiny_directory() -> Path:
    return Path(ling_runtime.__file__).parent / "checkpoints" / "ling_tiny"


@pytest.fixture(scope="session")
def tiny_config(tiny_directory: Path) -> ModelConfig:
    return ModelConfig.from_pretrained(tiny_directory)


@pytest.fixture(scope="session")
def tiny_params(tiny_directory: Path, tiny_config: ModelConfig) -> dict[str, Tensor]:
    return {name: value.float() for name, value in load(tiny_directory, tensor_specs(tiny_config)).items()}
