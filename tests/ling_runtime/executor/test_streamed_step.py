"""Captured steps on a card, streamed products or none: as launched one by one, and a row's bits in any window."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from tests.ling_runtime.interpreted import DEVICE  # isort: skip - before anything of Triton

from experiments.step_bench import SHARD, shortened
from experiments.step_subject import STACKS, Bench, Setting
from ling_runtime.config import ModelConfig
from ling_runtime.executor.graphs import VerifyStep
from ling_runtime.ops.cuda.build import obstacle
from ling_runtime.ops.triton.launch import pdl

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.ops.triton.launch import Pdl

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(obstacle()), reason=obstacle()),
]


@pytest.fixture(scope="module")
def bench() -> Bench:
    """Six layers of the model of one rank: two dense ones, one of MLA."""
    config = shortened(ModelConfig.from_pretrained(SHARD), 6)
    return Bench(config, context=1024, seed=0, most_rows=17, device=str(DEVICE))


def hidden(bench: Bench, setting: Setting, rows: int, mode: Pdl | None) -> Tensor:
    """Rows after the final norm, always of the same context; by replay if there is a mode."""
    bench.kernels.select(setting.selection)
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


KINDS = pytest.mark.parametrize("kind", ["default", "bf16-gate", "triton"])


@KINDS
@pytest.mark.parametrize("rows", [1, 6])
def test_replays_have_the_bits_of_launches(bench: Bench, kind: str, rows: int) -> None:
    want = hidden(bench, STACKS[kind], rows, None)
    for mode in ("off", "late", "early"):
        for _ in range(3):
            assert torch.equal(hidden(bench, STACKS[kind], rows, mode), want), mode


@KINDS
def test_a_row_has_the_same_bits_in_every_window(bench: Bench, kind: str) -> None:
    whole = hidden(bench, STACKS[kind], 17, None)
    for rows in range(1, 17):
        assert torch.equal(hidden(bench, STACKS[kind], rows, None), whole[:rows]), rows


def test_streamed_rows_differ_as_any_other_order_of_sums_does(bench: Bench) -> None:
    """Random weights make much of a last bit: a router apart from the norm, which rounds its rows elsewhere, is the
    measure. Operators alone are held to exact sums in `test_cuda_stream.py`.
    """
    apart = Setting(kernels={"linear": "triton", "kda_window": "triton", "moe": "triton"})
    want = hidden(bench, STACKS["triton"], 6, None).double()
    other, ours = (
        float((hidden(bench, setting, 6, None).double() - want).norm() / want.norm())
        for setting in (apart, STACKS["default"])
    )
    assert 0 < ours < min(4 * other, 0.1)
