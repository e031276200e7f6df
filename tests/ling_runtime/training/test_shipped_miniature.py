"""The shipped weights: size, completeness, and skill on fresh problems, teacher-forced to stay cheap."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from tokenizers import Tokenizer

from ling_runtime.training import dense
from ling_runtime.training.acceptance import Span, accept_length, accepted_runs
from ling_runtime.training.documents import plain, question
from ling_runtime.training.problems.generate import generate

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from ling_runtime.config import ModelConfig

pytestmark = pytest.mark.whole


@pytest.fixture(scope="module")
def rows(tiny_directory: Path) -> tuple[Tensor, list[list[Span]]]:
    """Six packed rows of fresh held-out problems, and where each row's worked answers lie after the fifth."""
    tokenizer = Tokenizer.from_file(str(tiny_directory / "tokenizer.json"))
    packed, spans = [], []
    problems = generate(424242, 60, "heldout")
    for _ in range(6):
        ids: list[int] = []
        found: list[Span] = []
        for position in range(8):
            problem = next(problems)
            start = len(ids) + len(tokenizer.encode(question(problem)).ids)
            ids += tokenizer.encode(plain(problem)).ids
            found += [Span(start, len(ids))] if position >= 5 else []
        packed.append(ids)
        spans.append(found)
    length = max(map(len, packed)) + 8
    padded = torch.tensor([ids + [0] * (length - len(ids)) for ids in packed])
    return padded, spans


def test_directory_stays_under_ten_megabytes(tiny_directory: Path) -> None:
    assert (tiny_directory / "model.safetensors").stat().st_size < 9.5e6
    assert sum(file.stat().st_size for file in tiny_directory.iterdir()) < 10e6


def test_worked_answers_are_the_model_s_own_choice(
    tiny_params: dict[str, Tensor], tiny_config: ModelConfig, rows: tuple[Tensor, list[list[Span]]]
) -> None:
    ids, spans = rows
    with torch.inference_mode():
        choice = dense.logits(tiny_params, dense.forward(tiny_params, tiny_config, ids).hidden).argmax(-1)
    right = [
        torch.equal(choice[row, span.start - 1 : span.end - 1], ids[row, span.start : span.end])
        for row, found in enumerate(spans)
        for span in found
    ]
    assert sum(right) >= 0.9 * len(right)


def test_drafts_are_accepted(
    tiny_params: dict[str, Tensor], tiny_config: ModelConfig, rows: tuple[Tensor, list[list[Span]]]
) -> None:
    ids, spans = rows
    runs = accepted_runs(tiny_params, tiny_config, ids, 5, rows=2)
    each = [(runs[row], span) for row, found in enumerate(spans) for span in found]
    confirmed, answers = torch.stack([run for run, _ in each]), [span for _, span in each]
    assert accept_length(confirmed, answers, depth=3) >= 2.8
    assert accept_length(confirmed, answers, depth=5) >= 3.6
