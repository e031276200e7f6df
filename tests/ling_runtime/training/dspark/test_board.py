"""Who waited for whom, read from counters that both halves write."""

from __future__ import annotations

import pytest
import torch

from ling_runtime.training.dspark.board import Board, Cell, Reading


def test_pace_counts_tokens_by_the_time_worked() -> None:
    board = Board.of(2)
    before = Reading(10.0, board.cells.clone())
    for pair in range(2):
        board.add(pair, Cell.TARGET_TOKENS, 1000)
        board.add(pair, Cell.TARGET_WAITED, 3.0)
        board.add(pair, Cell.DRAFT_TOKENS, 600)
        board.add(pair, Cell.PRODUCED, 5)
        board.add(pair, Cell.CONSUMED, 3)
    pace = Reading(14.0, board.cells.clone()).since(before)
    assert (pace.target.waited, pace.draft.waited, pace.queue) == (0.75, 0.0, 2.0)
    assert pace.target.tokens_s == pytest.approx(2000)  # two pairs, each 1,000 tokens in the one second it worked
    assert pace.draft.tokens_s == pytest.approx(300)
    assert str(pace) == "target 2.0k tok/s, waits 75%; draft 0.3k tok/s, waits 0%; queue 2.0"


def test_a_wait_counts_before_it_is_over() -> None:
    board = Board.of(1)
    with board.waiting(0, Cell.DRAFT_WAITED, Cell.DRAFT_SINCE):
        first, second = board.read(), board.read()
    assert 0 < first.cells[0, Cell.DRAFT_WAITED] < second.cells[0, Cell.DRAFT_WAITED]
    after = board.read().cells[0, Cell.DRAFT_WAITED]
    assert torch.equal(after, board.read().cells[0, Cell.DRAFT_WAITED])


def test_a_wish_to_stop_becomes_one_step_for_all_trainers() -> None:
    board, pairs = Board.of(1), Board.of(2)
    other = Board(pairs.cells, pairs.wish, pairs.last)
    for one in (board, pairs):
        one.settle(7)
        assert not one.stopping
        assert one.last_step > 10**9
        one.request_stop()
        one.settle(8)
        one.settle(9)
    assert board.last_step == 8
    assert other.stopping
    assert other.last_step == 11  # no trainer has gone further while the first was at 8
