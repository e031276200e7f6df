"""Training as a whole, tiny: it learns, a stopped run goes on as if it had not stopped, two ranks do one's work."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing

from ling_runtime.draft_config import DraftConfig
from ling_runtime.training import dense
from ling_runtime.training.checkpoint import restore, store
from ling_runtime.training.decode import generate_greedily
from ling_runtime.training.dspark.batch import Batch
from ling_runtime.training.dspark.corpus import Corpus
from ling_runtime.training.dspark.evaluate import evaluate, own_spans, replay
from ling_runtime.training.dspark.forward import forward
from ling_runtime.training.dspark.heads import markov_bias
from ling_runtime.training.dspark.losses import LossWeights
from ling_runtime.training.dspark.parallel import Ranks
from ling_runtime.training.dspark.recipe import PRESETS, Recipe, plain_draft, recipe
from ling_runtime.training.dspark.trainer import Shared, Trainer, initialise
from ling_runtime.training.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

    from ling_runtime.config import ModelConfig
    from ling_runtime.training.layers import Params

LENGTH, PROMPT, ROWS = 64, 8, 12


@pytest.fixture(scope="module")
def target(small_tensors: dict[str, Tensor]) -> Params:
    return {name: tensor.float() for name, tensor in small_tensors.items()}


@pytest.fixture(scope="module")
def small_recipe(draft_json: dict[str, Any]) -> Recipe:
    config = DraftConfig.from_dict(draft_json | {"block_size": 4})
    weights = LossWeights(cross_entropy=1.0, length=0.5, length_form="path", ramp=0.5)
    return Recipe(draft=config, schedule=Schedule(1e-2, 60, rise=5), losses=weights, anchors=16, seed=3)


@pytest.fixture(scope="module")
def texts(target: Params, small_config: ModelConfig, small_recipe: Recipe) -> Batch:
    """What the target writes after random prompts, with its states."""
    draw = torch.Generator().manual_seed(0)
    prompts = torch.randint(small_config.vocab_size, (ROWS, PROMPT), generator=draw).tolist()
    ids = generate_greedily(target, small_config, prompts, LENGTH)
    with torch.no_grad():
        trunk = dense.forward(target, small_config, ids, capture=small_recipe.draft.target_layer_ids)
    own = torch.arange(LENGTH).expand(ROWS, -1) >= PROMPT
    return Batch(ids, own, torch.cat(trunk.captured, -1), trunk.hidden)


def losses_of(trainer: Trainer, texts: Batch, steps: int) -> list[float]:
    corpus, curve = Corpus(texts), []
    while trainer.step < steps:
        progress = trainer.train_step(corpus.batch(trainer.step, rows=4, seed=1))
        curve.append(float(progress.losses.total))
    return curve


@pytest.mark.whole
def test_sixty_steps_teach_a_draft_to_follow(small_recipe: Recipe, target: Params, texts: Batch) -> None:
    trainer = Trainer.start(small_recipe, target)

    def accept_length() -> float:
        params = {name: p.detach() for name, p in trainer.params.items()}
        return evaluate(params, small_recipe.draft, trainer.shared, [texts]).accept_length

    before = accept_length()
    losses_of(trainer, texts, 60)
    assert before < 1.3
    assert accept_length() > before + 1


def test_a_resumed_run_repeats_the_uninterrupted_one(
    small_recipe: Recipe, target: Params, texts: Batch, tmp_path: Path
) -> None:
    whole = losses_of(Trainer.start(small_recipe, target), texts, 6)
    stopped = Trainer.start(small_recipe, target)
    first = losses_of(stopped, texts, 3)
    store(stopped, tmp_path / "checkpoint.pt")
    resumed = Trainer.start(replace(small_recipe, seed=3), target)
    restore(resumed, tmp_path / "checkpoint.pt")
    assert first + losses_of(resumed, texts, 6) == whole


def update(trainer: Trainer, texts: Batch) -> Params:
    trainer.train_step(texts)
    return {name: p.detach() for name, p in trainer.params.items()}


@pytest.fixture
def uneven(texts: Batch) -> Batch:
    """Rows of which ever fewer tokens count: a mean over ranks of means would be another step."""
    return texts._replace(loss_mask=texts.loss_mask & (torch.arange(ROWS)[:, None] * 4 <= torch.arange(LENGTH)))


@dataclass(frozen=True)
class Threads(Ranks):
    """Ranks that meet in this process."""

    barrier: threading.Barrier = field(default_factory=partial(threading.Barrier, 2))
    board: dict[int, Tensor] = field(default_factory=dict)

    def summed(self, value: Tensor) -> Tensor:
        self.board[self.rank] = value.clone()
        self.barrier.wait()
        value.copy_(sum(self.board.values()))
        self.barrier.wait()
        return value


def test_two_ranks_take_the_step_of_one(small_recipe: Recipe, target: Params, uneven: Batch) -> None:
    first = Threads(rank=0, size=2)
    trainers = [Trainer.start(small_recipe, target, ranks) for ranks in (first, replace(first, rank=1))]
    halves = [Batch(*(part.chunk(2)[rank] for part in uneven)) for rank in (0, 1)]
    want = update(Trainer.start(small_recipe, target), uneven)
    with ThreadPoolExecutor(2) as pool:
        for got in pool.map(update, trainers, halves):
            assert all(torch.allclose(got[name], value, atol=2e-5) for name, value in want.items())


def one_rank(rank: int, meeting: str, out: str, small_recipe: Recipe, target: Params, texts: Batch) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    mine = Batch(*(part.chunk(2)[rank] for part in texts))
    torch.save(update(Trainer.start(small_recipe, target, Ranks.of()), mine), f"{out}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_take_the_step_of_one(
    small_recipe: Recipe, target: Params, uneven: Batch, tmp_path: Path
) -> None:
    want = update(Trainer.start(small_recipe, target), uneven)
    given = (str(tmp_path / "meeting"), str(tmp_path), small_recipe, target, uneven)
    multiprocessing.spawn(one_rank, given, nprocs=2)
    for rank in (0, 1):
        got = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert all(torch.allclose(got[name], value, atol=2e-5) for name, value in want.items())


def test_replay_finds_what_drafting_one_by_one_finds(
    small_recipe: Recipe, target: Params, texts: Batch, markov_noise: Callable[[Params], Params]
) -> None:
    """Drafts of one anchor made serially, each Markov step fed with the draft before it."""
    config, shared = small_recipe.draft, Shared.of(target)
    params = markov_noise(initialise(config, 1))
    runs = replay(params, config, shared, texts, anchors=7).runs
    for row, anchor in ((0, 9), (1, 20), (3, 61)):
        at = torch.tensor([[anchor]])
        rows = forward(params, config, shared.embedding, texts.hidden[row][None], texts.ids[row][None], at)
        drafts = [int(texts.ids[row, anchor])]
        for _ in range(config.block_size):
            previous = torch.tensor(drafts + [0] * config.block_size)[: config.block_size]
            logits = rows[0, 0] @ shared.lm_head.T + markov_bias(params, config, rows[0, 0], previous)
            drafts.append(int(logits[len(drafts) - 1].argmax()))
        run = 0
        while run < config.block_size and texts.ids[row, anchor + 1 :].tolist()[run : run + 1] == [drafts[run + 1]]:
            run += 1
        assert runs[row, anchor] == run


@pytest.fixture
def markov_noise(texts: Batch) -> Callable[[Params], Params]:
    """Heads that follow the text's own successions now and then, so that runs have all lengths."""

    def noisy(params: Params) -> Params:
        w1, w2 = params["markov_head.markov_w1.weight"], params["markov_head.markov_w2.weight"]
        for a, b in zip(texts.ids[:, 8:-1:2].flatten().tolist(), texts.ids[:, 9::2].flatten().tolist(), strict=True):
            w2[b] += 2 * w1[a]
        return params

    return noisy


def test_every_eighth_batch_is_of_long_rows(texts: Batch) -> None:
    corpus = Corpus(texts, long=Batch(*(torch.cat([part, part], 1) for part in texts)))
    shapes = [tuple(corpus.batch(index, rows=4, seed=0).ids.shape) for index in range(16)]
    assert shapes == ([(4, LENGTH)] * 7 + [(2, 2 * LENGTH)]) * 2
    first, again, other = (corpus.batch(index, rows=4, seed=0).ids for index in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_spans_end_where_a_block_no_longer_fits() -> None:
    own = torch.arange(20)[None] >= torch.tensor([[5], [12]])
    assert [(s.start, s.end) for s in own_spans(own, block=4, limit=None)] == [(5, 16), (12, 16)]
    assert [(s.start, s.end) for s in own_spans(own, block=4, limit=3)] == [(5, 8), (12, 15)]


def test_presets_differ_from_the_plain_recipe_in_one_respect(tiny_config: ModelConfig) -> None:
    schedule = Schedule(1e-3, 10)
    plain = recipe("plain", tiny_config, 8, schedule)
    assert plain.draft == plain_draft(tiny_config, 8)
    assert plain.draft.target_layer_ids == (1, 4, 7, 10)
    for name in set(PRESETS) - {"plain"}:
        varied = recipe(name, tiny_config, 8, schedule)
        varied.draft.check_target(tiny_config)
        assert (varied.draft != plain.draft) != (varied.losses != plain.losses), name
