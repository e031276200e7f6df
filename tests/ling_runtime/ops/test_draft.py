"""What a draft chooses: rounding first, then the choice, and a sample from exactly what is reported."""

from __future__ import annotations

import pytest
import torch

from ling_runtime.ops.draft import Gumbel, attend_block, choose_draft, pair_order, turn, turn_table


def test_step_logits_round_before_the_choice() -> None:
    """256.5 is not in bf16: the tie it rounds to goes to the lowest id, though its bias made it the largest."""
    base, bias = torch.tensor([[256.0, 256.0, 1.0]]), torch.tensor([[0.0, 0.5, 0.0]])
    logits, token = choose_draft(base, bias, torch.bfloat16, None)
    assert logits.dtype == torch.bfloat16
    assert logits.tolist() == [[256.0, 256.0, 1.0]]
    assert token.tolist() == [0]
    assert choose_draft(base, bias, torch.float32, None)[1].tolist() == [1]


def test_a_sampled_draft_comes_from_the_softmax_of_its_step_logits() -> None:
    logits, temperature, draws = torch.tensor([[1.0, 0.0, -1.0]]), 0.7, 40_000
    uniform = torch.rand(draws, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    noise = Gumbel(-(-uniform.log()).log(), torch.full((draws, 1), temperature, dtype=torch.float64))
    _, tokens = choose_draft(logits.expand(draws, -1), torch.zeros(draws, 3), torch.float32, noise)
    frequencies = tokens.bincount(minlength=3) / draws
    torch.testing.assert_close(frequencies, torch.softmax(logits[0] / temperature, -1), rtol=0, atol=0.01)


def test_a_greedy_request_beside_a_sampled_one_keeps_its_argmax() -> None:
    logits = torch.tensor([[0.0, 1e-6], [0.0, 0.0]])
    noise = Gumbel(torch.tensor([[0.0, 0.0], [0.0, 9.0]], dtype=torch.float64), torch.ones(2, 1, dtype=torch.float64))
    assert choose_draft(logits, torch.zeros(2, 2), torch.float32, noise)[1].tolist() == [1, 1]


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_the_library_s(causal: bool) -> None:
    noise = torch.Generator().manual_seed(1)
    rows, heads, groups, keys = 5, 6, 2, 23
    query, key, value = (
        torch.randn(n, h, 8, dtype=torch.float64, generator=noise)
        for n, h in ((rows, heads), (keys, groups), (keys, groups))
    )
    mask = torch.ones(rows, keys, dtype=torch.bool)
    if causal:
        mask[:, -rows:] = mask[:, -rows:].tril()
    wanted = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(0, 1)[None] for x in (query, key, value)), attn_mask=mask, scale=0.3, enable_gqa=True
    )[0].transpose(0, 1)
    torch.testing.assert_close(attend_block(query, key, value, 0.3, causal), wanted)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotation_turns_scores_by_the_distance(interleaved: bool) -> None:
    """q at m and k at n score as q at m - n and k at 0, and dimensions past the turning ones keep still."""
    order, table = pair_order(4, 6, interleaved=interleaved), turn_table(10000.0, 4, 6, 50)
    q, k = torch.randn(2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))[:, order]
    near, far = ((turn(q, table[m]) * turn(k, table[n])).sum() for m, n in ((12, 0), (42, 30)))
    torch.testing.assert_close(near, far)
    assert torch.equal(turn(q, table[7])[4:], q[4:])
