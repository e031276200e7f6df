"""A target small enough to train drafts for in a test, as a directory, and sequences that it wrote."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from safetensors.torch import save_file

from ling_runtime.config import ModelConfig
from ling_runtime.training.dspark.generate import GenerateOptions, run
from ling_runtime.weights import initialise

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def small_target(small_json: dict[str, Any], tiny_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with random weights and the miniature's tokenizer."""
    directory = tmp_path_factory.mktemp("target")
    described = small_json | {"vocab_size": 1024, "num_hidden_layers": 6}
    for limits in ("expert_swiglu_limit_list", "share_expert_swiglu_limit_list"):
        described[limits] = [*described[limits], 0.0, 0.0]
    (directory / "config.json").write_text(json.dumps(described))
    save_file(initialise(ModelConfig.from_dict(described), seed=3), directory / "model.safetensors")
    shutil.copy(tiny_directory / "tokenizer.json", directory)
    return directory


@pytest.fixture(scope="session")
def sequences(small_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as `generate` writes it: 24 rows of 64 tokens, and 4 of 128."""
    directory = tmp_path_factory.mktemp("sequences")
    asked = GenerateOptions(
        model=small_target, out=directory, rows=24, length=64, long_rows=4, long_length=128, batch=24, seed=1
    )
    assert run(asked) == 0
    return directory
