"""The ablation's tables: differences are paired by seed."""

from __future__ import annotations

import pytest

from ling_runtime.training.dspark.table import difference, rows


def test_what_seeds_share_is_no_uncertainty() -> None:
    middle, half = difference([5.2, 6.3, 7.1], [5.0, 6.0, 7.0])
    assert middle == pytest.approx(0.2)
    assert half == pytest.approx(4.302653 * 0.1 / 3**0.5, rel=1e-6)
    assert difference([2.0], [1.5]) == (0.5, None)


def test_only_seeds_that_both_have_are_compared() -> None:
    common = {"ship": False, "parameters": 1000, "ece": [0.1, 0.3]}
    results = [
        {"preset": "plain", "seed": seed, "accept_length": length, **common} for seed, length in ((0, 5.0), (1, 6.0))
    ]
    results += [{"preset": "head-rnn", "seed": 1, "accept_length": 6.25, **common}]
    results += [{"preset": "head-rnn", "seed": 2, "accept_length": 99.0, **common}]
    assert rows(results) == [
        "| plain | 2 | 1,000 | 5.500 |  | 0.2000 |",
        "| head-rnn | 1 | 1,000 | 6.250 | +0.250 | 0.2000 |",
    ]
