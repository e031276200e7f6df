"""Short trainings on a CPU: the loss falls, a stopped run goes on where it was, the draft layer moves alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from tokenizers import Tokenizer

from ling_runtime.training import checkpoint, dense, nextn
from ling_runtime.training.acceptance import Span, accept_length, accepted_runs
from ling_runtime.training.decode import generate_greedily
from ling_runtime.training.initialise import initialise
from ling_runtime.training.optimizer import orthogonalise
from ling_runtime.training.packing import Packing, stream
from ling_runtime.training.pretrain import Recipe, Trainer, balance, head_loss
from ling_runtime.training.schedule import Schedule

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from ling_runtime.config import ModelConfig

pytestmark = pytest.mark.whole

RECIPE = Recipe(schedule=Schedule(4e-3, 40, rise=5))


@pytest.fixture(scope="module")
def config(small_config: ModelConfig) -> ModelConfig:
    return replace(small_config, vocab_size=1024)


@pytest.fixture(scope="module")
def batches(tiny_directory: Path) -> list[Tensor]:
    packing = Packing(tokenizer_file=tiny_directory / "tokenizer.json", seed=1, rows=4, length=128)
    return [torch.from_numpy(packing.shard(k)).long() for k in range(30)]


def trainer(config: ModelConfig) -> Trainer:
    return Trainer(initialise(config, 0), config, RECIPE, dense.PLAIN, head_loss)


def test_thirty_steps_halve_the_loss(config: ModelConfig, batches: list[Tensor]) -> None:
    run = trainer(config)
    history = [run.train_step(ids) for ids in batches]
    assert history[-1].target < 0.6 * history[0].target
    assert history[-1].nextn < history[0].nextn


def test_resumed_run_continues_the_first(config: ModelConfig, batches: list[Tensor], tmp_path: Path) -> None:
    straight, first, second = trainer(config), trainer(config), trainer(config)
    for ids in batches[:8]:
        straight.train_step(ids)
    for ids in batches[:4]:
        first.train_step(ids)
    checkpoint.store(first, tmp_path / "checkpoint.pt")
    checkpoint.restore(second, tmp_path / "checkpoint.pt")
    assert second.step == 4
    for ids in batches[4:8]:
        second.train_step(ids)
    assert all(torch.equal(value, straight.params[name]) for name, value in second.params.items())


def test_balance_lifts_the_starved_expert(config: ModelConfig) -> None:
    params = initialise(config, 0)
    load = torch.tensor([0.9, 0.1, *[0.4] * 6])
    balance(params, {2: load}, 0.5)
    bias = params["model.layers.2.mlp.gate.expert_bias"]
    assert (bias[0], bias[1]) == (-0.5, 0.5)


def test_orthogonalised_matrices_have_singular_values_near_one() -> None:
    x = torch.randn(3, 20, 12, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(x))
    assert values.min() > 0.5
    assert values.max() < 1.5


def test_draft_training_moves_the_draft_layer_alone(config: ModelConfig) -> None:
    params = initialise(config, 0)
    texts = generate_greedily(params, config, [[3, 1, 4], [1, 5, 9], [2, 6, 5]], 40).clone()
    before = {name: value.clone() for name, value in params.items()}
    run = nextn.Trainer(params, config, 3, Schedule(4e-3, 40, rise=2), dense.PLAIN)
    history = [run.train_step(texts).loss for _ in range(12)]
    assert (history[-1] < history[0]).all()
    moved = {name for name, value in params.items() if not torch.equal(value.detach(), before[name])}
    prefix = f"model.layers.{config.num_hidden_layers}."
    assert moved
    assert all(name.startswith(prefix) for name in moved)


def test_schedule_rises_stays_and_falls_to_zero() -> None:
    rate = Schedule(2.0, 100, rise=10, fall=0.5).at
    assert [rate(0), rate(9), rate(40), rate(75), rate(100)] == pytest.approx([0.2, 2.0, 2.0, 1.0, 0.0])


def test_shards_do_not_depend_on_the_workers(tiny_directory: Path) -> None:
    packing = Packing(tokenizer_file=tiny_directory / "tokenizer.json", seed=5, rows=2, length=64)
    with stream(packing, 3, 0) as here, stream(packing, 3, 1) as elsewhere:
        for _ in range(3):
            assert (next(here) == next(elsewhere)).all()


def test_accept_length_counts_what_a_server_would() -> None:
    """Bases 4.. with runs 2, -, -, 0, 5: from token 5 on, steps gain 3, 1 and (cut by the end) 3 tokens."""
    runs = torch.tensor([[0, 0, 0, 0, 2, 9, 9, 0, 5, 0, 0, 0]])
    assert accept_length(runs, [Span(5, 13)], depth=3) == pytest.approx(7 / 3)
    assert accept_length(runs, [Span(5, 13)], depth=1) == pytest.approx(7 / 4)


def test_runs_are_the_drafts_a_trajectory_confirms(config: ModelConfig) -> None:
    """A draft layer whose head sees only zeros always guesses token 0, so it is right exactly where 0 follows."""
    params = initialise(config, 0)
    params[f"model.layers.{config.num_hidden_layers}.final_layernorm.weight"].zero_()
    ids = torch.tensor([[5, 0, 0, 0, 7, 0, 0, 3, 0, 0, 0, 0]])
    runs = accepted_runs(params, config, ids, depth=2)
    assert runs.tolist() == [[2, 1, 0, 2, 1, 0, 2, 2, 2]]


def test_own_texts_begin_with_a_question(config: ModelConfig, tiny_directory: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_directory / "tokenizer.json"))
    texts = nextn.own_texts(initialise(config, 0), config, tokenizer, rows=2, length=700, seed=0)
    assert texts.shape == (2, 700)
    assert all(tokenizer.decode(row.tolist()).startswith("Question: ") for row in texts)


@pytest.mark.gpu
def test_replayed_steps_equal_plain_ones(config: ModelConfig, batches: list[Tensor]) -> None:
    losses = {}
    for device in ("cpu", "cuda"):
        params = {name: value.to(device) for name, value in initialise(config, 0).items()}
        run = Trainer(params, config, RECIPE, dense.PLAIN, head_loss)
        losses[device] = [run.train_step(ids.to(device)).target.item() for ids in batches[:8]]
    assert losses["cuda"] == pytest.approx(losses["cpu"], abs=0.02)


def test_greedy_text_is_reproducible(config: ModelConfig) -> None:
    params = initialise(config, 0)
    one, two = (generate_greedily(params, config, [[310, 25, 275]], 24) for _ in range(2))
    assert torch.equal(one, two)
