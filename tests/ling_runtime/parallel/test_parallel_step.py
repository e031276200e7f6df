"""The network over several ranks against the network of one: what it says, what it keeps, what it refuses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ling_runtime.config import ConfigError
from ling_runtime.dummy import DummyTensors
from ling_runtime.executor.draft import DraftSettings
from ling_runtime.executor.interface import GREEDY
from ling_runtime.parallel.communicator import ALONE, Communicator
from ling_runtime.parallel.meeting import check_cards
from ling_runtime.tensor_table import tensor_specs
from ling_runtime.weights import unshard
from tests.ling_runtime.executor.driving import generate, prompt_of, warm
from tests.ling_runtime.parallel.ranks import executor, together

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.config import ModelConfig
    from ling_runtime.executor.interface import RowSampling

pytestmark = pytest.mark.whole
PROMPT, TOKENS, FIRST = prompt_of(2, 37), 24, 1
"""`FIRST` is the slot of an executor's first request."""


@dataclass(frozen=True)
class Served:
    """An answer, and the memory behind it: by KDA layer the state [H, d, d], by cache layer the latents."""

    tokens: list[int]
    logprobs: list[float]
    steps: int
    state: Tensor
    latent: Tensor


@pytest.fixture(scope="module")
def serve(small_config: ModelConfig, small_tensors: dict[str, Tensor]):  # type: ignore[no-untyped-def]
    def one(ranks: Communicator, sampling: RowSampling = GREEDY, **settings: Any) -> Served:
        built = executor(small_config, small_tensors, ranks, **settings)
        out = generate(built, PROMPT, TOKENS, sampling)
        pool = built._caches
        latent = pool.latent.rows[: len(small_config.layers(mla=True))]
        return Served(out.tokens, out.logprobs, out.steps, pool.recurrent._state[:, FIRST].clone(), latent.clone())

    return one


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_answer_as_one_does_and_keep_their_heads_of_its_state(serve: Any, size: int) -> None:
    alone, ranks = serve(ALONE), together(size, serve)
    assert all(rank.tokens == alone.tokens for rank in ranks)
    assert all(rank.logprobs == ranks[0].logprobs for rank in ranks), "every rank has the same logits, to the bit"
    assert ranks[0].logprobs == pytest.approx(alone.logprobs, abs=2e-5)
    assert all(torch.equal(rank.latent, ranks[0].latent) for rank in ranks)
    torch.testing.assert_close(ranks[0].latent, alone.latent, atol=2e-5, rtol=1e-4)
    state = torch.cat([rank.state for rank in ranks], dim=1)
    assert state.abs().max() > 0.01
    torch.testing.assert_close(state, alone.state, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("size", "dtype"), [(2, "float32"), (2, "bfloat16"), pytest.param(4, "bfloat16", marks=pytest.mark.slow)]
)
def test_nextn_on_ranks_is_plain_decoding_to_the_bit(serve: Any, size: int, dtype: str) -> None:
    plain = together(size, lambda ranks: serve(ranks, dtype=dtype))
    drafted = together(size, lambda ranks: serve(ranks, dtype=dtype, num_steps=3, chunk=16))
    for one, other in zip(plain, drafted, strict=True):
        assert (one.tokens, one.logprobs) == (other.tokens, other.logprobs)


def test_nextn_on_ranks_drafts_as_one_rank_does(serve: Any) -> None:
    alone, ranks = serve(ALONE, num_steps=2), together(2, lambda ranks: serve(ranks, num_steps=2))
    assert [rank.steps for rank in ranks] == [alone.steps, alone.steps]


def test_ranks_sample_the_same_tokens(serve: Any) -> None:
    alone, ranks = serve(ALONE, warm(5)), together(2, lambda ranks: serve(ranks, warm(5)))
    assert [rank.tokens for rank in ranks] == [alone.tokens, alone.tokens]


def test_the_greedy_choice_over_shards_is_the_best_of_all_logits_and_the_lowest_on_a_tie(
    small_config: ModelConfig, small_tensors: dict[str, Tensor]
) -> None:
    rows = torch.randn(5, small_config.hidden_size, generator=torch.Generator().manual_seed(1))
    head = small_tensors["lm_head.weight"].float()
    head[[20, 70]] = 3 * rows[2]  # in the first and in the second half
    head[[60, 90]] = 3 * rows[3]
    tensors = small_tensors | {"lm_head.weight": head}

    def choose(ranks: Communicator) -> tuple[Tensor, Tensor]:
        model = executor(small_config, tensors, ranks)._model
        return model.greedy(rows), model.logits(rows)

    for choices, logits in together(2, choose):
        assert logits.shape == (5, small_config.vocab_size)
        assert torch.equal(choices, (rows @ head.T).argmax(-1))
        assert choices[2:4].tolist() == [20, 60]


@pytest.mark.parametrize("size", [3, 4])
def test_more_than_two_parts_are_added_in_the_order_of_ranks_wherever_the_row_lies(size: int) -> None:
    parts = [torch.randn(16, 8, generator=torch.Generator().manual_seed(rank)) for rank in range(size)]
    expected = parts[0]
    for part in parts[1:]:
        expected = expected + part
    for first in (0, 5):
        for total in together(size, lambda ranks, first=first: ranks.reduce(parts[ranks.rank][first:].clone())):
            assert torch.equal(total, expected[first:])


def test_ranks_draw_their_parts_of_one_model(small_config: ModelConfig) -> None:
    cpu = torch.device("cpu")
    whole = DummyTensors(small_config, seed=4, device=cpu)
    parts = [DummyTensors(small_config, seed=4, device=cpu, rank=rank, size=2) for rank in range(2)]
    for name, spec in tensor_specs(small_config).items():
        assert torch.equal(unshard(spec, [part[name] for part in parts]), whole[name])
    assert parts[1]["lm_head.weight"].shape == (48, 64)


class Many(Communicator):
    def __init__(self, size: int) -> None:
        self.size = size


def test_what_ranks_cannot_share_is_refused(small_config: ModelConfig) -> None:
    with pytest.raises(ConfigError, match="tp_size=3: does not divide num_attention_heads=4"):
        executor(small_config, {}, Many(3))
    with pytest.raises(ConfigError, match="tp_size=2: not under speculative_algorithm DSPARK; allowed: NEXTN or none"):
        executor(small_config, {}, Many(2), draft=DraftSettings(path="-"))


def test_ranks_need_a_card_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(ConfigError, match=r"tp_size=2: .* 1 can be seen \(CUDA_VISIBLE_DEVICES=3\); allowed: 1"):
        check_cards(2)
    check_cards(1)
