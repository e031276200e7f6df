"""Weights drawn by name: equal whatever the order, finite through a model, experts chosen evenly."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import ling_runtime
from ling_runtime.config import ConfigError, ModelConfig
from ling_runtime.draft_config import DraftConfig
from ling_runtime.draft_table import draft_tensor_specs
from ling_runtime.dummy import DummyTensors
from ling_runtime.executor.build import ExecutorSettings, load_executor
from ling_runtime.executor.draft import DraftSettings
from ling_runtime.executor.interface import GREEDY, Admission
from ling_runtime.memory.caches import Caches
from ling_runtime.memory.window import Window
from ling_runtime.model.ling import Ling
from ling_runtime.ops.registry import Kernels
from ling_runtime.speculation.dspark.schedule import ScheduleSettings
from ling_runtime.tensor_table import tensor_specs

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
        slot = executor.admit(Admission([5, 6, 7], 8))
        found.append([executor.prefill(slot).token, *executor.decode([slot])[slot].tokens])
    assert found[0] == found[1]
    with pytest.raises(ConfigError):
        load_executor(str(tmp_path), ExecutorSettings(context_length=64))


def test_a_draft_without_weights_is_drawn_beside_its_target(tmp_path: Path) -> None:
    """Equal in every run, with the confidence head where it is asked for; there is nothing to plan by."""
    target, draft = tmp_path / "target", tmp_path / "draft"
    for path, shipped in ((target, SHIPPED), (draft, SHIPPED.parent / "ling_tiny_dspark_8")):
        path.mkdir()
        (path / "config.json").write_text((shipped / "config.json").read_text())
    found = []
    for confidence in (False, True, True):
        settings = DraftSettings(path=str(draft), confidence=confidence)
        executor = load_executor(str(target), ExecutorSettings(load_format="dummy", context_length=64, draft=settings))
        slot = executor.admit(Admission([5, 6, 7], 8))
        token = executor.prefill(slot).token
        window = Window(slots=(slot,), starts=(3,), rows=9)
        with torch.inference_mode():
            proposal = executor._proposer.propose(window, torch.tensor([token]), [GREEDY])  # type: ignore[union-attr]
        assert (proposal.confidence is not None) == confidence
        found.append(proposal.drafts.tolist())
    assert found[0] == found[1] == found[2]
    planned = DraftSettings(path=str(draft), schedule=ScheduleSettings(mode="compact"))
    with pytest.raises(ConfigError, match="verify mode compact, allowed: static"):
        load_executor(str(target), ExecutorSettings(load_format="dummy", draft=planned))


@pytest.mark.parametrize("head", ["vanilla", "gated", "rnn"])
def test_a_drawn_block_does_not_repeat_one_token(
    tmp_path: Path, small_json: dict[str, Any], draft_json: dict[str, Any], head: str
) -> None:
    """Whatever it repeats, verification reads the experts of fewer tokens than a text has."""
    size = {"vocab_size": 2048}
    block = {"markov_head_type": head, "markov_rank": 64, "block_size": 16}
    parts = {"target": small_json | size, "draft": draft_json | size | block}
    for name, json_ in parts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(json_))
    settings = ExecutorSettings(load_format="dummy", draft=DraftSettings(path=str(tmp_path / "draft")))
    executor = load_executor(str(tmp_path / "target"), settings)
    prompt = [i * 37 % 2048 for i in range(40)]
    slot = executor.admit(Admission(prompt, 8))
    executor.prefill(slot)
    for anchor in (5, 600, 1700):
        window = Window(slots=(slot,), starts=(40,), rows=17)
        with torch.inference_mode():
            proposal = executor._proposer.propose(window, torch.tensor([anchor]), [GREEDY])  # type: ignore[union-attr]
        drafts = proposal.drafts[0].tolist()
        assert len(drafts) == 16
        assert len(set(drafts)) >= 8, drafts  # of 2,048 tokens a random choice by the one before may end in a circle


def test_the_drawn_draft_fits_the_drawn_target() -> None:
    """One of four ranks: parameters of the published draft, where heads, columns and tokens are divided by four."""
    target = ModelConfig.from_pretrained(SHIPPED.parent / "ling_3_flash_rank_shard")
    draft = DraftConfig.from_pretrained(SHIPPED.parent / "ling_3_flash_rank_shard_dspark")
    draft.check_target(target)
    whole = replace(draft, num_attention_heads=32, num_key_value_heads=32, intermediate_size=6144, vocab_size=157184)
    assert sum(spec.numel for spec in draft_tensor_specs(whole).values()) == 961_316_865 - 157184 * 2560
    layer = 4 * 2560 * 1024 + 3 * 2560 * 1536 + 2 * 2560 + 2 * 128
    rest = 5 * 2560 * 2560 + 2 * 2560 + 2 * 39296 * 256 + 2560 + 256 + 1
    assert sum(spec.numel for spec in draft_tensor_specs(draft).values()) == 5 * layer + rest


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
