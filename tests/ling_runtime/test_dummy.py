"""Weights drawn by name: equal whatever the order, finite through a model, experts chosen evenly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import ling_runtime
from ling_runtime.config import ConfigError
from ling_runtime.dummy import DummyTensors
from ling_runtime.executor.build import ExecutorSettings, load_executor
from ling_runtime.memory.caches import Caches
from ling_runtime.memory.window import Window
from ling_runtime.model.ling import Ling
from ling_runtime.ops.registry import Kernels
from ling_runtime.weights import tensor_specs
from tests.ling_runtime.executor.driving import GREEDY

if TYPE_CHECKING:
    from ling_runtime.config import ModelConfig

CPU = torch.device("cpu")
SHIPPED = Path(ling_runtime.__file__).parent / "checkpoints/ling_tiny"


def test_a_tensor_depends_on_seed_and_name_alone(small_config: ModelConfig) -> None:
    first, second = (DummyTensors(small_config, seed=5, device=CPU) for _ in range(2))
    names = list(first)
    assert set(names) == set(tensor_specs(small_config))
    forward = {name: first[name] for name in names}
    assert all(torch.equal(second[name], forward[name]) for name in reversed(names))
    one = "model.layers.0.attention.q_proj.weight"
    assert not torch.equal(DummyTensors(small_config, seed=6, device=CPU)[one], forward[one])
    assert not torch.equal(forward[one], forward["model.layers.0.attention.k_proj.weight"])


def test_a_checkpoint_without_weights_is_drawn(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((SHIPPED / "config.json").read_text())
    found = []
    for _ in range(2):
        executor = load_executor(str(tmp_path), ExecutorSettings(load_format="dummy", context_length=64, num_steps=2))
        slot = executor.admit([5, 6, 7], 8, GREEDY, logprobs=None, prompt_logprobs_from=None)
        found.append([executor.prefill(slot).token, *executor.decode([slot])[slot].tokens])
    assert found[0] == found[1]
    with pytest.raises(ConfigError):
        load_executor(str(tmp_path), ExecutorSettings(context_length=64))


def test_many_layers_stay_finite_and_use_experts_evenly(small_config: ModelConfig) -> None:
    layers = 24
    limits = {f"{kind}_swiglu_limit_list": (0.0,) * layers for kind in ("expert", "share_expert")}
    config = replace(small_config, num_hidden_layers=layers, num_nextn_predict_layers=0, **limits)
    model = Ling(config, DummyTensors(config, seed=1, device=CPU), Kernels(), positions=256)
    caches = Caches(config, max_requests=1, pages=4, dtype=torch.float32, device=CPU)
    window = Window(slots=(caches.reserve(200),), starts=(0,), rows=192)
    ids = torch.randint(config.vocab_size, (192,), generator=torch.Generator().manual_seed(0))
    hidden = model(ids, caches.begin(window))
    assert hidden.isfinite().all()
    assert 0.5 < float(hidden.std()) < 2
    gate = DummyTensors(config, seed=1, device=CPU)["model.layers.20.mlp.gate.weight"].float()
    counts = (hidden @ gate.T).topk(config.num_experts_per_tok, dim=-1).indices.flatten().bincount(minlength=8)
    assert counts.max() <= 3 * counts.min()
