"""A captured step of streamed products on a card: as launched one by one, and a row's bits whatever the window."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from tests.ling_runtime.interpreted import DEVICE  # isort: skip - before anything of Triton

from experiments.step_bench import SHARD, shortened
from experiments.step_subject import BF16_GATE, STREAMED, STREAMED_EXACT, Bench, Setting
from ling_runtime.config import ModelConfig
from ling_runtime.executor.graphs import VerifyStep
from ling_runtime.ops.cuda.build import usable
from ling_runtime.ops.triton.launch import pdl

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.ops.triton.launch import Pdl

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not usable(), reason="needs a card with dependent launches, and nvcc"),
]


@pytest.fixture(scope="module")
def bench() -> Bench:
    """Six layers of the model of one rank: two dense ones, one of MLA."""
    config = shortened(ModelConfig.from_pretrained(SHARD), 6)
    return Bench(config, context=1024, seed=0, most_rows=6, device=str(DEVICE))


def hidden(bench: Bench, kernels: dict[str, str], rows: int, mode: Pdl | None) -> Tensor:
    """Rows after the final norm, always of the same context; by replay if there is a mode."""
    bench.kernels.select(Setting(kernels=kernels).selection)
    verify = VerifyStep(bench.model, bench.caches, bench.relay, batch=1, rows=rows)
    verify.slots.fill_(bench.slot)
    with pdl(mode or "off"):
        if mode is not None:
            verify.capture()
        bench._noise.manual_seed(0)
        bench.reset()
        if mode is None:
            verify.run()
        else:
            verify.replay()
    return verify.hidden.clone()


@pytest.mark.parametrize("kernels", [BF16_GATE, STREAMED_EXACT, STREAMED], ids=["triton", "exact", "streamed"])
@pytest.mark.parametrize("rows", [1, 6])
def test_replays_have_the_bits_of_launches(bench: Bench, kernels: dict[str, str], rows: int) -> None:
    want = hidden(bench, kernels, rows, None)
    for mode in ("off", "late", "early"):
        for _ in range(3):
            assert torch.equal(hidden(bench, kernels, rows, mode), want), mode


@pytest.mark.parametrize("kernels", [BF16_GATE, STREAMED_EXACT, STREAMED], ids=["triton", "exact", "streamed"])
def test_a_row_has_the_same_bits_in_every_window(bench: Bench, kernels: dict[str, str]) -> None:
    whole = hidden(bench, kernels, 6, None)
    for rows in (1, 2, 4):
        assert torch.equal(hidden(bench, kernels, rows, None), whole[:rows]), rows


def test_streamed_rows_differ_as_any_other_order_of_sums_does(bench: Bench) -> None:
    """Random weights make much of a last bit: another value tile, which adds a norm's squares in another order, is the
    measure. Operators alone are held to exact sums in `test_cuda_stream.py`.
    """
    want = hidden(bench, BF16_GATE, 6, None).double()
    other, ours = (
        float((hidden(bench, kernels, 6, None).double() - want).norm() / want.norm())
        for kernels in (BF16_GATE | {"kda_window": "triton_bv16"}, STREAMED)
    )
    assert 0 < ours < min(4 * other, 0.1)
