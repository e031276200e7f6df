"""Weights drawn by name: equal whatever the order, finite through a model, experts chosen evenly."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ling_runtime.dummy import DummyTensors
from ling_runtime.memory.caches import Caches
from ling_runtime.memory.window import Window
from ling_runtime.model.ling import Ling
from ling_runtime.ops.registry import Kernels
from ling_runtime.weights import tensor_specs

if TYPE_CHECKING:
    from ling_runtime.config import ModelConfig

CPU = torch.device("cpu")


def test_a_tensor_depends_on_seed_and_name_alone(small_config: ModelConfig) -> None:
    first, second = (DummyTensors(small_config, seed=5, device=CPU) for _ in range(2))
    names = list(first)
    assert set(names) == set(tensor_specs(small_config))
    forward = {name: first[name] for name in names}
    assert all(torch.equal(second[name], forward[name]) for name in reversed(names))
    one = "model.layers.0.attention.q_proj.weight"
    assert not torch.equal(DummyTensors(small_config, seed=6, device=CPU)[one], forward[one])
    assert not torch.equal(forward[one], forward["model.layers.0.attention.k_proj.weight"])


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
