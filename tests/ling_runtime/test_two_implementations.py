"""The runtime's window path against the differentiable whole-sequence forward, which shares no line with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from ling_runtime.executor.build import ExecutorSettings, build_executor
from ling_runtime.memory.window import Window
from ling_runtime.training import dense

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.config import ModelConfig

LENGTH = 100


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 2e-5)])
@pytest.mark.parametrize("rows", [1, 6, 33, LENGTH])
def test_logits_of_windows_equal_those_of_the_whole_sequence(
    small_config: ModelConfig, small_tensors: dict[str, Tensor], dtype: str, tolerance: float, rows: int
) -> None:
    ids = torch.randint(0, small_config.vocab_size, (LENGTH,), generator=torch.Generator().manual_seed(1))
    executor = build_executor(small_config, small_tensors, ExecutorSettings(dtype=dtype, max_requests=1))
    model, caches = executor._model, executor._caches
    slot = caches.reserve(LENGTH)
    parts = []
    with torch.inference_mode():
        for start in range(0, LENGTH, rows):
            window = Window(slots=(slot,), starts=(start,), rows=min(rows, LENGTH - start))
            hidden = model(ids[start : start + rows], caches.begin(window))
            caches.recurrent.commit(window, torch.tensor([window.rows]))
            parts.append(model.logits(hidden[: window.rows]))
    params = {name: tensor.double() for name, tensor in small_tensors.items()}
    trunk = dense.forward(params, small_config, ids[None])
    whole = dense.logits(params, trunk.hidden)[0]
    error = (torch.cat(parts).double() - whole).abs().max() / whole.abs().max()
    assert error <= tolerance
