"""The draft with its cache against the differentiable draft without one, which shares no line with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from ling_runtime.draft_weights import load_draft
from ling_runtime.executor.build import ExecutorSettings, build_executor
from ling_runtime.executor.draft import DraftSettings
from ling_runtime.memory.window import Window
from ling_runtime.model import markov
from ling_runtime.training.dspark.forward import forward
from ling_runtime.training.dspark.heads import confidence, markov_bias

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.config import ModelConfig
    from ling_runtime.executor.step import StepExecutor
    from ling_runtime.speculation.dspark.proposer import DsparkProposer
    from tests.ling_runtime.conftest import WriteDraft

LENGTH, ANCHOR = 70, 17
MLA = {"attention_type": "mla", "kv_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12}
STRUCTURES: dict[str, dict[str, Any]] = {
    "mha": {},
    "mha-interleaved": {"rope_interleave": True},
    "mha-partial": {"partial_rotary_factor": 0.5, "is_causal": True},
    "mha-partial-interleaved": {"partial_rotary_factor": 0.25, "rope_interleave": True, "num_key_value_heads": 4},
    "mla": MLA,
    "mla-interleaved": MLA | {"rope_interleave": True, "is_causal": True},
    "past-the-anchor": {"sample_from_anchor": False},
}


class Both:
    """One draft twice: in an executor that has taken in a prompt, and as parameters of the reference."""

    def __init__(self, config: ModelConfig, tensors: dict[str, Tensor], path: str, chunk: int) -> None:
        draft = DraftSettings(path=path, confidence=True)
        settings = ExecutorSettings(draft=draft, dtype="float64", max_requests=2, context_length=200)
        self.executor: StepExecutor = build_executor(config, tensors, settings)
        self.proposer: DsparkProposer = self.executor._proposer  # type: ignore[assignment]
        self.draft = self.proposer._draft
        raw = load_draft(path, self.draft.config)
        self.params = {name: tensor.double() for name, tensor in raw.items()}
        self.ids = torch.randint(0, 90, (LENGTH,), generator=torch.Generator().manual_seed(1))
        self.embedding = tensors["model.word_embeddings.weight"].double()
        self.slot = self.executor._caches.reserve(LENGTH + 20)
        with torch.inference_mode():
            self.captured = torch.cat([self.take(start, chunk) for start in range(0, LENGTH, chunk)])

    def take(self, start: int, chunk: int) -> Tensor:
        """Run the target over a chunk, inject it, and return what was captured."""
        model, caches = self.executor._model, self.executor._caches
        rows = min(chunk, LENGTH - start)
        window = Window(slots=(self.slot,), starts=(start,), rows=rows)
        pass_ = caches.begin(window)
        target = model.rows(self.ids[start : start + rows], pass_, self.proposer.capture)
        caches.recurrent.commit(window, torch.tensor([rows]))
        self.proposer.extend(pass_, self.ids[None, start : start + rows], target, torch.tensor([rows]))
        return torch.cat(target.captured, dim=-1)[:rows].clone()

    def block(self, drafts: int) -> Tensor:
        context = self.proposer._pool.context(self.slot, LENGTH + self.draft.rows(drafts))
        with torch.inference_mode():
            return self.draft(torch.tensor([ANCHOR]), (LENGTH,), [context], drafts)[0].clone()

    def reference(self) -> Tensor:
        ids = torch.cat([self.ids, torch.tensor([ANCHOR])])[None]
        hidden = torch.cat([self.captured, torch.full((1, self.captured.shape[1]), torch.nan)])[None].clone()
        hidden[:, -1] = 1e3  # the anchor has no state; a block that read it would show
        rows = forward(self.params, self.draft.config, self.embedding, hidden, ids, torch.tensor([[LENGTH]]))
        return rows[0, 0]


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_block_over_the_cache_is_the_block_without_one(
    small_config: ModelConfig, small_tensors: dict[str, Tensor], write_draft: WriteDraft, structure: str
) -> None:
    path = write_draft(**STRUCTURES[structure])
    blocks = []
    for chunk in (1, 13, 64, LENGTH):
        both = Both(small_config, small_tensors, path, chunk)
        blocks.append(both.block(8))
        torch.testing.assert_close(blocks[-1], both.reference(), rtol=1e-10, atol=1e-10)
    assert all(torch.equal(block, blocks[0]) for block in blocks), "chunks leave no trace"


def test_a_shorter_block_is_the_network_of_that_block(
    small_config: ModelConfig, small_tensors: dict[str, Tensor], write_draft: WriteDraft
) -> None:
    short = Both(small_config, small_tensors, write_draft(block_size=5), LENGTH)
    long = Both(small_config, small_tensors, write_draft(block_size=16), LENGTH)
    assert torch.equal(long.block(5), short.block(5))


def test_what_lies_behind_the_context_is_never_read(
    small_config: ModelConfig, small_tensors: dict[str, Tensor], write_draft: WriteDraft
) -> None:
    both = Both(small_config, small_tensors, write_draft(), LENGTH)
    clean = both.block(8)
    pool = both.proposer._pool
    for row in range(LENGTH, LENGTH + 20):
        page = both.executor._caches.latent.table(both.slot)[row // 64]
        pool.rows[page, row % 64] = torch.nan
    assert torch.equal(both.block(8), clean)


def test_pages_in_pieces_give_the_same_block(
    small_config: ModelConfig, small_tensors: dict[str, Tensor], write_draft: WriteDraft
) -> None:
    both = Both(small_config, small_tensors, write_draft(), LENGTH)
    whole, pool, latent = both.block(8), both.proposer._pool, both.executor._caches.latent
    first, second = latent.table(both.slot)[:2]
    spare = pool.rows.shape[0] - 1
    pool.rows[spare] = pool.rows[second]
    latent._tables[both.slot] = [first, spare]
    assert torch.equal(both.block(8), whole)


@pytest.mark.parametrize("table", [True, False], ids=["table", "online"])
@pytest.mark.parametrize("head", ["vanilla", "gated", "rnn"])
def test_markov_bias_and_confidence_are_the_published_formulas(
    small_config: ModelConfig,
    small_tensors: dict[str, Tensor],
    write_draft: WriteDraft,
    head: str,
    table: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not table:
        monkeypatch.setattr(markov, "TABLE_BYTES", 0)
    both = Both(small_config, small_tensors, write_draft(markov_head_type=head), LENGTH)
    hidden = torch.randn(2, 8, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    previous = torch.randint(0, 96, (2, 8), generator=torch.Generator().manual_seed(3))
    step = both.draft.markov.chain(hidden)
    bias = torch.stack([step(k, previous[:, k]) for k in range(8)], dim=1)
    config = both.draft.config
    torch.testing.assert_close(bias, markov_bias(both.params, config, hidden, previous), rtol=1e-10, atol=1e-10)
    assert both.draft.confidence is not None
    logits = both.draft.confidence(hidden, previous)
    torch.testing.assert_close(logits, confidence(both.params, config, hidden, previous), rtol=1e-10, atol=1e-10)


def test_confidence_can_do_without_the_token(
    small_config: ModelConfig, small_tensors: dict[str, Tensor], write_draft: WriteDraft
) -> None:
    both = Both(small_config, small_tensors, write_draft(confidence_head_with_markov=False), LENGTH)
    hidden, previous = torch.randn(1, 8, 64, dtype=torch.float64), torch.zeros(1, 8, dtype=torch.int64)
    assert both.draft.confidence is not None
    logits = both.draft.confidence(hidden, previous)
    torch.testing.assert_close(logits, confidence(both.params, both.draft.config, hidden, previous))
