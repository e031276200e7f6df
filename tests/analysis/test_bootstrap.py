"""The bootstrap over prompts and blocks: which kind of cluster counts, and what follows by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.bootstrap import bootstrap
from analysis.pairs import Pairs, log_ratio


def crossed(blocks: int, prompts: int, effect: np.ndarray) -> Pairs:
    """Every prompt in every block; `effect` [blocks, prompts] is the log-ratio of step time in each cell."""
    block, prompt = np.repeat(np.arange(blocks), prompts), np.tile(np.arange(prompts), blocks)
    steps = np.full((2, blocks * prompts), 34.0)
    decode = steps * 0.01 * np.exp(np.stack([np.zeros(effect.size), effect.ravel()]))
    return Pairs(
        block=block,
        prompt=prompt,
        requests=np.full_like(steps, 2.0),
        decode_s=decode,
        steps=steps,
        tokens=np.full_like(steps, 126.0),
        tpot_s=decode / 63,
    )


def test_no_noise_is_a_point() -> None:
    interval = bootstrap(crossed(6, 4, np.full((6, 4), -0.03)), "step_time", seed=1)
    assert (interval.low, interval.high) == (pytest.approx(-0.03), pytest.approx(-0.03))


def test_fewer_clusters_than_can_cover_say_nothing() -> None:
    """Five blocks have 31 subsets: the least of them is below the truth in one case of 32, the largest likewise."""
    noise = np.random.default_rng(2).normal(0, 0.02, size=(6, 1))
    assert bootstrap(crossed(1, 1, np.zeros((1, 1))), "step_time", seed=1).high == math.inf
    assert bootstrap(crossed(5, 1, noise[:5]), "step_time", seed=1).high == math.inf
    assert bootstrap(crossed(6, 1, noise), "step_time", seed=1).high < math.inf


def test_more_blocks_cannot_help_where_only_prompts_differ() -> None:
    """The accept length of greedy decoding: forty blocks of the same sixteen prompts are sixteen numbers."""
    by_prompt = np.random.default_rng(3).normal(0, 0.02, size=(1, 16))
    few, many = (bootstrap(crossed(n, 16, np.repeat(by_prompt, n, axis=0)), "step_time", seed=1) for n in (4, 40))
    assert few.high - few.low == pytest.approx(many.high - many.low, rel=0.05)


def test_more_prompts_cannot_help_where_only_blocks_differ() -> None:
    by_block = np.random.default_rng(3).normal(0, 0.02, size=(16, 1))
    few, many = (bootstrap(crossed(16, n, np.repeat(by_block, n, axis=1)), "step_time", seed=1) for n in (2, 20))
    assert few.high - few.low == pytest.approx(many.high - many.low, rel=0.05)


def test_both_kinds_of_cluster_add_up() -> None:
    generator = np.random.default_rng(5)
    blocks, prompts = generator.normal(0, 0.02, size=(20, 1)), generator.normal(0, 0.02, size=(1, 20))
    width = [
        interval.high - interval.low
        for effect in (blocks + prompts, blocks + 0 * prompts, 0 * blocks + prompts)
        for interval in [bootstrap(crossed(20, 20, effect), "step_time", seed=1)]
    ]
    assert width[0] == pytest.approx(math.hypot(width[1], width[2]), rel=0.1)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_the_estimate_is_the_ratio_of_sums_and_inside(seed: int) -> None:
    pairs = crossed(6, 3, np.random.default_rng(seed).normal(0, 0.05, size=(6, 3)))
    interval = bootstrap(pairs, "tpot", seed=seed, resamples=199)
    assert interval.estimate == pytest.approx(float(log_ratio(pairs.tpot_s.sum(axis=1), pairs.requests.sum(axis=1))))
    assert interval.low <= interval.estimate <= interval.high


def test_the_same_seed_gives_the_same_interval() -> None:
    pairs = crossed(6, 3, np.random.default_rng(1).normal(0, 0.05, size=(6, 3)))
    assert bootstrap(pairs, "tpot", seed=4) == bootstrap(pairs, "tpot", seed=4)
