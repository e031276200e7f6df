"""States from the runtime's own forward, against the differentiable one, which shares no line with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from ling_runtime.training import dense
from ling_runtime.training.dspark.target import Target
from ling_runtime.training.dspark.trajectories import Rows

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.config import ModelConfig

LAYERS = (0, 2, 3)


@pytest.fixture(scope="module")
def rows(small_config: ModelConfig) -> Rows:
    rng = np.random.default_rng(4)
    ids = rng.integers(0, small_config.vocab_size, (5, 75)).astype(np.uint16)
    return Rows(ids, np.array([1, 20, 40, 60, 74], np.int32), np.zeros(5, np.uint8))


def target(config: ModelConfig, tensors: dict[str, Tensor], **settings: object) -> Target:
    return Target(config, tensors, LAYERS, longest=128, device=torch.device("cpu"), **settings)


def test_states_are_those_of_the_differentiable_forward(
    small_config: ModelConfig, small_tensors: dict[str, Tensor], rows: Rows
) -> None:
    params = {name: value.double() for name, value in small_tensors.items()}
    ids = torch.from_numpy(rows.ids).long()
    with torch.no_grad():
        trunk = dense.forward(params, small_config, ids, capture=LAYERS)
    batch = target(small_config, small_tensors, dtype=torch.float64, kept=torch.float64)(rows)
    assert torch.equal(batch.ids, ids)
    assert batch.loss_mask.sum(1).tolist() == [74, 55, 35, 15, 1]
    torch.testing.assert_close(batch.hidden, torch.cat(trunk.captured, -1), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(batch.final, trunk.hidden, rtol=1e-9, atol=1e-9)


def test_batches_leave_nothing_behind(
    small_config: ModelConfig, small_tensors: dict[str, Tensor], rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = target(small_config, small_tensors)
    first, second = run(rows), run(rows)
    assert torch.equal(first.hidden, second.hidden)
    monkeypatch.setattr("ling_runtime.training.dspark.target.PASS_TOKENS", 150)
    parted = run(rows)
    torch.testing.assert_close(parted.hidden, first.hidden, rtol=1e-5, atol=1e-5)
    assert run.kernels.calls["mla_window"] > 0
    assert "whole_rows" in {row["variant"] for row in run.kernels.report()}


def test_states_can_be_saved_for_gradients_and_narrowed(
    small_config: ModelConfig, small_tensors: dict[str, Tensor], rows: Rows
) -> None:
    batch = target(small_config, small_tensors, kept=torch.bfloat16)(rows)
    assert batch.final.dtype == torch.bfloat16
    weight = torch.ones(batch.final.shape[-1], requires_grad=True)
    (batch.final.float() @ weight).sum().backward()
    assert weight.grad is not None
