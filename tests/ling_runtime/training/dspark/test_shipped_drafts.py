"""The shipped drafts: whole, small, made for the shipped target, and good on answers that nobody trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from tokenizers import Tokenizer

from ling_runtime.draft_config import DraftConfig
from ling_runtime.draft_weights import load_draft
from ling_runtime.training import dense
from ling_runtime.training.documents import plain, question
from ling_runtime.training.dspark.batch import Batch
from ling_runtime.training.dspark.evaluate import evaluate
from ling_runtime.training.dspark.trainer import Shared
from ling_runtime.training.problems.generate import generate

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from ling_runtime.config import ModelConfig

MEGABYTE = 2**20


@pytest.fixture(scope="module")
def answers(tiny_directory: Path, tiny_config: ModelConfig, tiny_params: dict[str, Tensor]) -> list[Batch]:
    """Two worked examples and a held-out problem, answered as the target would: its answer is all but always right."""
    tokenizer = Tokenizer.from_file(str(tiny_directory / "tokenizer.json"))
    batches = []
    for seed in (31, 32, 33):
        *shots, asked, following = generate(seed, 4, "heldout")
        before = "".join(map(plain, shots))
        start = len(tokenizer.encode(before + question(asked)).ids)
        end = len(tokenizer.encode(before + plain(asked)).ids)
        ids = torch.tensor([tokenizer.encode(before + plain(asked) + plain(following)).ids[: end + 16]])
        with torch.no_grad():
            trunk = dense.forward(tiny_params, tiny_config, ids, capture=(1, 4, 7, 10))
        own = torch.arange(ids.shape[1])[None] >= start
        batches.append(Batch(ids, own, torch.cat(trunk.captured, -1), trunk.hidden))
    return batches


@pytest.mark.parametrize(("block", "least"), [(8, 5.0), pytest.param(16, 6.5, marks=pytest.mark.whole)])
def test_shipped_draft_carries_far_on_held_out_answers(
    tiny_directory: Path,
    tiny_config: ModelConfig,
    tiny_params: dict[str, Tensor],
    answers: list[Batch],
    block: int,
    least: float,
) -> None:
    directory = tiny_directory.with_name(f"ling_tiny_dspark_{block}")
    config = DraftConfig.from_pretrained(directory)
    config.check_target(tiny_config)
    assert config.block_size == block
    assert (directory / "model.safetensors").stat().st_size < 10 * MEGABYTE
    params = {name: tensor.float() for name, tensor in load_draft(directory, config, confidence=True).items()}
    lengths = []
    for batch in answers:
        spare = 16 - block  # the text goes on for 16 tokens behind the answer, so that both blocks see the same span
        cut = Batch(*(part[:, : part.shape[1] - spare] for part in batch))
        lengths.append(evaluate(params, config, Shared.of(tiny_params), [cut]).accept_length)
    assert sum(lengths) / len(lengths) > least
