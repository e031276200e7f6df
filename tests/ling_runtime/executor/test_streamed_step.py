"""A captured step of streamed products on a card: as launched one by one, and a row's bits whatever the window."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from tests.ling_runtime.interpreted import DEVICE  # isort: skip - before anything of Triton

from experiments.step_bench import SHARD, shortened
from experiments.step_subject import STACKS, Bench
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


def hidden(bench: Bench, stack: str, rows: int, mode: Pdl | None) -> Tensor:
    """Rows after the final norm, always of the same context; by replay if there is a mode."""
    bench.kernels.select(STACKS[stack].selection)
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


@pytest.mark.parametrize("stack", ["lean-bf16", "streamed"])
@pytest.mark.parametrize("rows", [1, 6])
def test_replays_have_the_bits_of_launches(bench: Bench, stack: str, rows: int) -> None:
    want = hidden(bench, stack, rows, None)
    for mode in ("off", "late", "early", "first"):
        for _ in range(3):
            assert torch.equal(hidden(bench, stack, rows, mode), want), mode


@pytest.mark.parametrize("stack", ["lean-bf16", "streamed"])
def test_a_row_has_the_same_bits_in_every_window(bench: Bench, stack: str) -> None:
    whole = hidden(bench, stack, 6, None)
    for rows in (1, 2, 4):
        assert torch.equal(hidden(bench, stack, rows, None), whole[:rows]), rows


def test_streamed_rows_are_near_the_other_stacks(bench: Bench) -> None:
    ours, theirs = (hidden(bench, stack, 6, None).double() for stack in ("streamed", "lean-bf16"))
    assert float((ours - theirs).norm() / theirs.norm()) < 0.03
