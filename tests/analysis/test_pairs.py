"""Pairing by prompt and block, and the three ratios, against values worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.blocks import ABBA, BAAB, orders, prompts
from analysis.pairs import FIGURES, Answer, PairingError, contrasts, pair

ANSWERS = [
    Answer(arm="baseline", block=0, prompt="p", tokens=11, steps=5, decode_s=0.10),
    Answer(arm="baseline", block=0, prompt="p", tokens=11, steps=5, decode_s=0.12),
    Answer(arm="candidate", block=0, prompt="p", tokens=11, steps=4, decode_s=0.08),
    Answer(arm="candidate", block=0, prompt="p", tokens=11, steps=4, decode_s=0.08),
    Answer(arm="baseline", block=3, prompt="q", tokens=21, steps=10, decode_s=0.20),
    Answer(arm="candidate", block=3, prompt="q", tokens=21, steps=8, decode_s=0.20),
]


def test_contrasts_by_hand() -> None:
    pairs = pair(ANSWERS)
    assert pairs.blocks == 2
    step = [math.log((0.16 / 8) / (0.22 / 10)), math.log((0.20 / 8) / (0.20 / 10))]
    tpot = [math.log(0.008 / 0.011), math.log(0.01 / 0.01)]
    assert contrasts(pairs, "step_time") == pytest.approx(step)
    assert contrasts(pairs, "tpot") == pytest.approx(tpot, abs=1e-12)
    assert contrasts(pairs, "accept") == pytest.approx([math.log(5 / 4)] * 2)


def test_step_time_is_tpot_times_accept_length_where_lengths_are_equal() -> None:
    pairs = pair(ANSWERS)
    parts = {figure: contrasts(pairs, figure) for figure in FIGURES}
    assert parts["step_time"] == pytest.approx(parts["tpot"] + parts["accept"])


def test_the_order_of_rows_does_not_matter() -> None:
    there, back = pair(ANSWERS), pair(ANSWERS[::-1])
    assert all(np.allclose(getattr(there, name), getattr(back, name)) for name in vars(there))


def test_an_answer_without_its_counterpart_is_refused_by_name() -> None:
    with pytest.raises(PairingError, match="block 3, prompt q: no answer of the candidate"):
        pair(ANSWERS[:-1])


@pytest.mark.parametrize("change", [{"tokens": 1}, {"steps": 0}, {"decode_s": 0.0}])
def test_an_answer_that_cannot_be_timed_is_refused(change: dict[str, float]) -> None:
    with pytest.raises(PairingError, match="nothing to time"):
        pair([*ANSWERS, replace(ANSWERS[0], **change)])


def test_first_blocks_alone() -> None:
    assert contrasts(pair(ANSWERS).first(1), "step_time") == pytest.approx(contrasts(pair(ANSWERS), "step_time")[:1])


@given(st.integers(1, 50), st.integers(0, 10**6))
def test_orders_are_blocks_and_a_longer_run_begins_as_a_shorter_one(blocks: int, seed: int) -> None:
    drawn = orders(blocks + 5, seed=seed)
    assert set(drawn) <= {ABBA, BAAB}
    assert drawn[:blocks] == orders(blocks, seed=seed)


def test_the_coin_is_fair() -> None:
    heads = sum(order == ABBA for order in orders(4000, seed=1))
    assert abs(heads - 2000) < 4 * math.sqrt(1000)


def test_prompts_begin_again_where_they_run_out() -> None:
    assert prompts("abc", blocks=3, each=2) == (("a", "b"), ("c", "a"), ("b", "c"))
