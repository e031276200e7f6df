"""What a prompt has to do, against figures made another way, and that no kernel is missing from the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.prefill_floor import KERNELS, Work, work
from experiments.prefill_table import Family, Line, table
from ling_runtime.config import ModelConfig

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def shard() -> ModelConfig:
    return ModelConfig.from_pretrained(ROOT / "ling_runtime/checkpoints/ling_3_flash_rank_shard")


def test_operations_are_those_of_the_weights_and_of_pairs_of_positions(shard: ModelConfig) -> None:
    whole = work(shard, rows=8192, part=8192, draft=False)
    assert whole["experts up"].flops + whole["experts down"].flops == pytest.approx(40 * 8192 * 9 * 2 * 3 * 2560 * 192)
    assert whole["MLA attention"].flops == pytest.approx(7 * 8 * 2 * (192 + 128) * 8192**2 / 2)
    of_attention = 35 * 2560 * (6 * 1024 + 8) + 7 * 2560 * (8 * 192 + 576 + 8 + 1024)
    assert whole["dense products"].flops == pytest.approx(2 * 8192 * (of_attention + 2 * 3 * 2560 * 1536))


def test_a_part_reads_every_expert_and_makes_the_keys_before_it_anew(shard: ModelConfig) -> None:
    whole, halves = (work(shard, rows=8192, part=part, draft=True) for part in (8192, 4096))
    weights = 41 * 513 * 2 * 2560 * 192 * 2
    assert halves["experts up"].bytes - whole["experts up"].bytes == pytest.approx(weights)
    assert halves["MLA keys, values"].flops == pytest.approx(1.5 * whole["MLA keys, values"].flops)
    assert halves["MLA attention"].flops == whole["MLA attention"].flops


def test_a_floor_is_the_larger_of_work_and_bytes() -> None:
    assert Work(1e12, 1e9, 1e14).floor_ms(1e12) == pytest.approx(10)
    assert Work(1e12, 5e10, 1e14).floor_ms(1e12) == pytest.approx(50)


def test_every_kernel_of_a_prompt_has_a_family(shard: ModelConfig) -> None:
    sources = (ROOT / "ling_runtime/ops/triton").glob("prompt_*.py")
    launched = {
        line.split("[(")[0].strip() for path in sources for line in path.read_text().splitlines() if "[(" in line
    }
    assert {name for name in launched if name.startswith("_")} <= set(KERNELS)
    assert len(launched) >= 15
    assert set(KERNELS.values()) == set(work(shard, rows=64, part=64, draft=True))


def test_the_table_has_a_line_for_each_family() -> None:
    family = Family(name="experts up", launches=40, ms=20.0, tflop=5.9, gigabytes=42.5, floor_ms=10.0)
    rest = Family(name="torch and the rest", launches=3, ms=1.0, tflop=0.0, gigabytes=0.0, floor_ms=0.0)
    line = Line(
        stack="triton", part=8192, ttft_ms=100.0, spread_ms=1.0, device_ms=101.0, peak_gigabytes=2.0,
        families=(family, rest),
    )  # fmt: skip
    lines = table([line]).splitlines()
    assert "TTFT 100.0 ms" in lines[0]
    assert lines[2].split()[-1] == "2.0"
    assert lines[3].split()[-1] == "0.00"
