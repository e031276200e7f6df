"""What the target writes for drafts to learn from: settings per row, the file, the endless stream."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from ling_runtime.config import ConfigError, ModelConfig
from ling_runtime.speculation.noise import uniform
from ling_runtime.training.choice import Choice, Sampling
from ling_runtime.training.decode import generate, generate_greedily
from ling_runtime.training.dspark.generate import write_rows
from ling_runtime.training.dspark.prompts import Prompts
from ling_runtime.training.dspark.trajectories import SETTINGS, Rows, Trajectories
from ling_runtime.weights import initialise

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

CPU = torch.device("cpu")
LENGTH = 64


@pytest.fixture(scope="module")
def config(small_config: ModelConfig) -> ModelConfig:
    return replace(small_config, vocab_size=1024)


@pytest.fixture(scope="module")
def params(config: ModelConfig) -> dict[str, Tensor]:
    return {name: value.float() for name, value in initialise(config, seed=3).items()}


@pytest.fixture(scope="module")
def prompts(tiny_directory: Path) -> Prompts:
    tokenizer = Tokenizer.from_file(str(tiny_directory / "tokenizer.json"))
    return Prompts(tokenizer=tokenizer, seed=5, length=LENGTH)


@pytest.fixture(scope="module")
def rows(params: dict[str, Tensor], config: ModelConfig, prompts: Prompts) -> Rows:
    return write_rows(params, config, prompts, SETTINGS, rows=24, batch=24)


@pytest.fixture(scope="module")
def trajectories(rows: Rows) -> Trajectories:
    return Trajectories(target="a" * 64, seed=5, split="train", settings=SETTINGS, rows={LENGTH: rows})


def choice(*rows: Sampling) -> Choice:
    return Choice.of(rows, list(range(len(rows))), CPU)


def test_each_row_is_sampled_as_its_own_setting_says() -> None:
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0]).repeat(4000, 1)
    settings = [Sampling(), Sampling(temperature=1.0), Sampling(temperature=0.7, top_p=0.8, top_k=20)]
    settings.append(Sampling(temperature=2.0, top_k=2))
    drawn = Choice.of(settings * 1000, list(range(4000)), CPU)(logits, torch.tensor([9]))[:, 0]
    greedy, wide, narrow, two = (drawn[kind::4].bincount(minlength=5) / 1000 for kind in range(4))
    assert greedy.tolist() == [1, 0, 0, 0, 0]
    assert (wide - logits[0].softmax(-1)).abs().max() < 0.05
    kept = (logits[0] / 0.7).softmax(-1)[:2]  # the first two hold 0.86: the second token crosses 0.8
    assert narrow[2:].sum() == 0
    assert abs(narrow[0] - kept[0] / kept.sum()) < 0.05
    assert two[2:].sum() == 0
    assert abs(two[0] - torch.tensor([1.0, 0.5]).softmax(-1)[0]) < 0.05


def test_noise_of_a_row_is_the_servers(config: ModelConfig) -> None:
    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(1))
    ours = Choice.of([Sampling(temperature=1.0)], [77], CPU)(logits, torch.tensor([6])).item()
    noise = uniform(torch.tensor([77]), torch.tensor([6]), 40)
    assert ours == (logits.log_softmax(-1) - (-noise.log()).log()).argmax().item()


def test_rows_do_not_depend_on_their_batch(rows: Rows, params: dict, config: ModelConfig, prompts: Prompts) -> None:
    again = write_rows(params, config, prompts, SETTINGS, rows=24, batch=7)
    assert all(np.array_equal(one, other) for one, other in zip(rows, again, strict=True))
    other = write_rows(params, config, replace(prompts, seed=6), SETTINGS, rows=24, batch=24)
    assert not np.array_equal(rows.ids, other.ids)


def test_a_row_is_its_prompt_and_then_the_targets_text(
    rows: Rows, params: dict, config: ModelConfig, prompts: Prompts
) -> None:
    (own,) = np.flatnonzero(rows.setting == 0)[:1]
    prompt = prompts.prompt(int(own))
    assert rows.ids[own, : rows.first[own]].tolist() == prompt
    assert len(prompt) <= LENGTH * 3 // 4
    assert rows.ids[own].tolist() == generate_greedily(params, config, [prompt], LENGTH)[0].tolist()
    assert rows.loss_mask[own].sum() == LENGTH - len(prompt)


def test_sampled_rows_differ_from_greedy_ones(params: dict, config: ModelConfig) -> None:
    both = generate(params, config, [[5, 6, 7]] * 2, 40, choice(Sampling(), Sampling(temperature=1.0)))
    assert not torch.equal(both[0], both[1])


def test_file_returns_what_was_written_for_its_target_only(trajectories: Trajectories, tmp_path: Path) -> None:
    trajectories.save(tmp_path)
    read = Trajectories.open(tmp_path, target="a" * 64)
    assert read.settings == SETTINGS
    assert read.seed == 5
    assert all(np.array_equal(a, b) for a, b in zip(read.rows[LENGTH], trajectories.rows[LENGTH], strict=True))
    assert json.loads((tmp_path / "manifest.json").read_text())["files"][0]["rows"] == 24
    with pytest.raises(ConfigError, match="written by another target"):
        Trajectories.open(tmp_path, target="b" * 64)
    with pytest.raises(ConfigError, match=r"no manifest\.json there"):
        Trajectories.open(tmp_path / "nowhere", target="a" * 64)


def test_stream_is_a_function_of_its_index_and_mixes_by_share(trajectories: Trajectories) -> None:
    def draw(index: int, rows: int, source: Trajectories = trajectories) -> Rows:
        return source.batch(index, rows=rows, length=LENGTH, seed=1)

    assert np.array_equal(draw(3, 8).ids, draw(3, 8).ids)
    assert not np.array_equal(draw(3, 8).ids, draw(4, 8).ids)
    shares = np.bincount(draw(0, 4000).setting, minlength=4) / 4000
    assert np.abs(shares - [0.5, 0.25, 0.15, 0.1]).max() < 0.03
    text = draw(0, 50, trajectories.shared({"text": 1.0}))
    assert set(text.setting) == {3}
    with pytest.raises(ConfigError, match=r"shares: warm.*allowed: greedy, narrow, wide, text"):
        trajectories.shared({"warm": 1.0})
    with pytest.raises(ConfigError, match=r"length=8: allowed: 64"):
        trajectories.batch(0, rows=1, length=8, seed=1)


def test_heldout_prompts_are_not_those_of_training(prompts: Prompts) -> None:
    assert prompts.prompt(0) != replace(prompts, split="heldout").prompt(0)
