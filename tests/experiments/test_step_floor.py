"""The bytes of a step against the sums of the fact sheet, for one rank of four of Ling-3.0-flash."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.step_floor import cache_bytes, draft_bytes, nextn_bytes, state_bytes, step_bytes, weight_bytes
from ling_runtime.config import ModelConfig

SHARD = Path(__file__).parents[2] / "ling_runtime/checkpoints/ling_3_flash_rank_shard"
DENSE, GATES, HEAD, EXPERT = 1.277e9, 40 * 512 * 2560 * 4, 39296 * 2560 * 2, 3 * 2560 * 192 * 2


@pytest.fixture(scope="module")
def shard() -> ModelConfig:
    return ModelConfig.from_pretrained(SHARD)


@pytest.mark.parametrize(("rows", "distinct"), [(1, 8.0), (6, 46.16), (17, 120.26)])
def test_weights_are_those_of_the_sheet(shard: ModelConfig, rows: int, distinct: float) -> None:
    experts = 40 * (distinct + 1) * EXPERT
    assert weight_bytes(shard, rows, distinct) == pytest.approx(DENSE + GATES + HEAD + experts, rel=2e-3)


def test_cache_and_state_are_those_of_the_sheet(shard: ModelConfig) -> None:
    assert cache_bytes(shard, 8192) == 8192 * 8064
    assert state_bytes(shard) == pytest.approx(18.35e6 * (1 + 8 * 513 / 128**2), rel=1e-3)


def test_a_whole_step_adds_drafts_and_one_extension(shard: ModelConfig) -> None:
    verify = step_bytes(shard, rows=6, context=8192, distinct=46.16)
    draft, extend = (draft_bytes(shard, 8192, distinct) for distinct in (8.0, 46.16))
    assert draft == pytest.approx(0.275e9, rel=0.1)
    assert nextn_bytes(shard, steps=5, context=8192, distinct=46.16) == pytest.approx(verify + 4 * draft + extend)
