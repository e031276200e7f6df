"""The ablation's tables: differences are paired by seed."""

from __future__ import annotations

import pytest

from ling_runtime.training.dspark.table import difference, rows


def test_what_seeds_share_is_no_uncertainty() -> None:
    middle, half = difference([5.2, 6.3, 7.1], [5.0, 6.0, 7.0])
    assert middle == pytest.approx(0.2)
    assert half == pytest.approx(4.302653 * 0.1 / 3**0.5, rel=1e-6)
    assert difference([2.0], [1.5]) == (0.5, None)


def run(preset: str, seed: int, steps: int, accept_length: float) -> dict[str, object]:
    common = {"ship": False, "parameters": 1000, "ece": [0.1, 0.3]}
    return {"preset": preset, "seed": seed, "steps": steps, "accept_length": accept_length, **common}


def test_only_runs_of_one_seed_and_budget_are_compared() -> None:
    results = [run("plain", 0, 10, 5.0), run("plain", 1, 10, 6.0), run("plain", 1, 20, 7.0)]
    results += [run("head-rnn", 1, 20, 7.25), run("head-rnn", 2, 10, 99.0), run("head-rnn", 0, 20, 99.0)]
    results += [run("head-gated", 0, 10, 5.5), run("head-gated", 1, 10, 6.5)]
    assert rows(results) == [
        "| head-rnn | 1 | 1,000 | 7.25 | 7.00 | +0.25 | 0.200 / 0.200 |",
        "| head-gated | 2 | 1,000 | 6.00 | 5.50 | +0.50 \u00b1 0.00 | 0.200 / 0.200 |",
    ]
