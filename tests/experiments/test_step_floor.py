"""The bytes of a step against the sums of the fact sheet, for one rank of four of Ling-3.0-flash."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.step_floor import (
    block_bytes,
    cache_bytes,
    draft_bytes,
    nextn_bytes,
    state_bytes,
    step_bytes,
    weight_bytes,
)
from ling_runtime.config import ModelConfig
from ling_runtime.draft_config import DraftConfig

SHARD = Path(__file__).parents[2] / "ling_runtime/checkpoints/ling_3_flash_rank_shard"
DRAFT = SHARD.parent / "ling_3_flash_rank_shard_dspark"
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


@pytest.mark.parametrize(("drafts", "distinct", "floor_ms"), [(8, 67.66, 2.5), (16, 120.26, 4.0)])
def test_parts_of_a_block_are_those_of_the_sheet(
    shard: ModelConfig, drafts: int, distinct: float, floor_ms: float
) -> None:
    """Per rank: 0.223 GB of layers, context of 20,480 bytes a token, 0.066 GB to fuse; the whole over 4.24 TB/s."""
    parts = block_bytes(shard, DraftConfig.from_pretrained(DRAFT), drafts=drafts, context=8192, distinct=distinct)
    assert parts["draft"] == pytest.approx(0.223e9 + HEAD + 39296 * 256 * 2 + 8192 * 20480, rel=2e-3)
    assert parts["verify"] == step_bytes(shard, rows=drafts + 1, context=8192, distinct=distinct)
    assert parts["inject"] == pytest.approx(0.066e9 + 5 * 2 * 1024 * 2560 * 2, rel=1e-2)
    assert parts["dspark"] == parts["draft"] + parts["verify"] + parts["inject"]
    assert parts["dspark"] / 4.24e12 * 1e3 == pytest.approx(floor_ms, rel=0.02)


def test_a_whole_step_adds_drafts_and_one_extension(shard: ModelConfig) -> None:
    verify = step_bytes(shard, rows=6, context=8192, distinct=46.16)
    draft, extend = (draft_bytes(shard, 8192, distinct) for distinct in (8.0, 46.16))
    assert draft == pytest.approx(0.275e9, rel=0.1)
    assert nextn_bytes(shard, steps=5, context=8192, distinct=46.16) == pytest.approx(verify + 4 * draft + extend)
