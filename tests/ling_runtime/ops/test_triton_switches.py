"""Variants that are chosen and not the default, held against the one beside them, on the card or interpreted."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.ling_runtime.interpreted import DEVICE  # isort: skip - before anything of Triton

from ling_runtime.ops.dense import dense_mlp
from ling_runtime.ops.linear import pad_rows
from ling_runtime.ops.moe_block import moe_block
from ling_runtime.ops.registry import Kernels
from ling_runtime.ops.router import route, route_bf16
from ling_runtime.ops.triton.align import by_counts, by_pairs
from ling_runtime.ops.triton.dense import dense_apart, dense_triton
from ling_runtime.ops.triton.head import greedy_triton, greedy_triton_fp32
from ling_runtime.ops.triton.kda_tiles import VALUE_TILES
from ling_runtime.ops.triton.moe_layer import moe_triton
from ling_runtime.ops.triton.moe_one import moe_block_select_inside, moe_block_select_inside_bf16
from ling_runtime.ops.triton.moe_switches import (
    moe_activated_apart,
    moe_aligned_by_counts,
    moe_aligned_by_pairs,
    moe_combined_with_roundings,
)
from ling_runtime.ops.triton.router import route_triton, route_triton_bf16
from ling_runtime.ops.triton.router_norm import moe_block_gate_norm, moe_block_gate_norm_bf16
from tests.ling_runtime.ops.held import DTYPES, ON_CPU_SLOW, TOLERANCE, close, draw, router_weights
from tests.ling_runtime.ops.test_triton import (
    ATTENTION_DTYPES,
    WINDOWS,
    attention_outputs,
    ends,
    moe_weights,
    two_layers,  # noqa: F401 - a fixture
)

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("interpreter")]
ROUTED = {"router": "triton"}
ON_A_CARD = DEVICE.type == "cuda"


def equal(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> None:
    """The same bits on the card; the interpreter's products are NumPy's, whose bits change with a row's place."""
    if ON_A_CARD:
        assert torch.equal(got, want)
    close(got, want, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("limit", [None, 0.4])
def test_dense_activation_in_triton(dtype: torch.dtype, limit: float | None) -> None:
    x = draw(6, 64, dtype=dtype)
    gate_up, down = draw(2 * 40, 64, dtype=dtype, scale=0.5), draw(48, 40, dtype=dtype, scale=0.2)
    kernels = Kernels({"linear": "triton"})
    want = dense_mlp(pad_rows(x), gate_up, down, limit, Kernels())[:6]
    close(dense_triton(x, gate_up, down, limit, kernels), want, dtype)
    alone, apart = (run(x[2:3], gate_up, down, limit, kernels) for run in (dense_triton, dense_apart))
    assert torch.equal(alone, apart)
    close(alone, want[2:3], dtype)


def named(plan: torch.Tensor, pairs: int) -> dict[int, set[int]]:
    """Pairs by expert as a plan has them; a block of an expert that is not full is its last."""
    experts, places = plan[:pairs].tolist(), plan[pairs:].view(pairs, 16).tolist()
    found: dict[int, set[int]] = {}
    for expert, block in zip(experts, places, strict=True):
        if expert >= 0:
            held = {pair for pair in block if pair < pairs}
            assert not found.get(expert, set()) & held
            assert len(found.get(expert, ())) % 16 == 0
            found.setdefault(expert, set()).update(held)
    return found


@pytest.mark.parametrize("plan", [by_pairs, by_counts])
@pytest.mark.parametrize(("rows", "shared"), [(1, 12), (6, 12), (6, None), (20, 12)])
def test_plans_hold_every_pair_once_under_its_expert(plan, rows: int, shared: int | None) -> None:  # type: ignore[no-untyped-def]
    noise = torch.Generator().manual_seed(rows)
    ids = torch.stack([torch.randperm(5 if rows > 6 else 12, generator=noise)[:3] for _ in range(rows)])
    want: dict[int, set[int]] = {}
    slots = 3 + (shared is not None)
    for row, chosen in enumerate(ids.tolist()):
        for slot, expert in enumerate([*chosen, *([] if shared is None else [shared])]):
            want.setdefault(expert, set()).add(row * slots + slot)
    assert named(plan(ids.to(DEVICE), shared, 12), rows * slots) == want


BITWISE = [moe_aligned_by_pairs, moe_aligned_by_counts, moe_activated_apart]


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=ON_CPU_SLOW)], ids=str)
@pytest.mark.parametrize("joined", [True, pytest.param(False, marks=ON_CPU_SLOW)])
@pytest.mark.parametrize("rows", [1, 3, pytest.param(17, marks=ON_CPU_SLOW)])
@pytest.mark.parametrize("run", BITWISE)
def test_a_moe_layer_with_a_kernel_more_is_the_same_layer(  # type: ignore[no-untyped-def]
    run, dtype: torch.dtype, joined: bool, rows: int
) -> None:
    x, weights = pad_rows(draw(rows, 64, dtype=dtype)), moe_weights(dtype, joined=joined)
    got, want = (one(*ends(x), rows, weights, Kernels(ROUTED)) for one in (run, moe_triton))
    for one, other in zip(got, want, strict=True):
        equal(one, other, dtype)


@pytest.mark.parametrize("joined", [True, pytest.param(False, marks=ON_CPU_SLOW)])
def test_a_combine_that_rounds_thrice_rounds(joined: bool) -> None:
    """In fp32 there is nothing to see; in bf16 it is further from the wide result than one rounding is."""
    for dtype in DTYPES:
        x, weights = pad_rows(draw(6, 64, dtype=dtype)), moe_weights(dtype, joined=joined)
        got, want = (one(*ends(x), 6, weights, Kernels(ROUTED))[1] for one in (moe_combined_with_roundings, moe_triton))
        close(got[:6], want[:6], dtype)
        assert torch.equal(got[6:], want[6:])
        assert torch.equal(got, want) == (dtype == torch.float32) or dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float32, marks=ON_CPU_SLOW)], ids=str)
def test_the_gate_in_bf16_follows_its_reference(dtype: torch.dtype) -> None:
    x, weights = draw(16, 64, dtype=dtype), router_weights()
    (ids, chosen), (want_ids, want) = route_triton_bf16(x, weights), route_bf16(x, weights)
    agree = (ids == want_ids).all(dim=1)
    assert agree.float().mean() > 0.8, "only near ties may go elsewhere"
    torch.testing.assert_close(chosen[agree], want[agree], rtol=2e-2, atol=1e-3)
    assert weights.narrow_gate is weights.narrow_gate, "converted once"


def test_a_gate_in_three_parts_loses_nothing() -> None:
    """Against products in fp64 of the same rows: only sums round."""
    x, weights = draw(16, 64, dtype=torch.bfloat16), router_weights()
    wide = replace(weights, gate=weights.gate.double())
    (ids, chosen), (want_ids, want) = route_triton(x, weights), route(x.double(), wide)
    assert torch.equal(ids, want_ids)
    torch.testing.assert_close(chosen, want.float(), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, pytest.param(6, marks=ON_CPU_SLOW)])
@pytest.mark.parametrize("run", [moe_block_gate_norm, moe_block_gate_norm_bf16])
def test_the_norm_as_a_factor_of_the_gate(run, dtype: torch.dtype, rows: int) -> None:  # type: ignore[no-untyped-def]
    weights = moe_weights(dtype, joined=True)
    if run is moe_block_gate_norm_bf16:
        weights.router.gate.copy_(weights.router.gate.bfloat16())
    x, residual, norm, eps = ends(pad_rows(draw(rows, 64, dtype=dtype)))
    entry = 1 + 0.2 * draw(64).flip(0)
    kernels = Kernels(ROUTED | {"moe": "triton", "add_rms_norm": "triton"})
    got, want = (one(x, residual, entry, norm, eps, rows, weights, kernels) for one in (run, moe_block))
    tolerance = torch.bfloat16 if run is moe_block_gate_norm_bf16 else dtype
    for one, other in zip(got, want, strict=True):
        close(one[:rows], other[:rows], tolerance)


@pytest.mark.parametrize(("dtype", "pair"), [(torch.float32, 0), (torch.bfloat16, 1)], ids=str)
def test_selection_inside_the_experts_is_the_same_selection(dtype: torch.dtype, pair: int) -> None:
    """Ids, weights and normed rows do not differ, so a row has the bits that it has in a window of more rows."""
    inside, apart = (
        (moe_block_select_inside, moe_block_gate_norm),
        (moe_block_select_inside_bf16, moe_block_gate_norm_bf16),
    )[pair]
    weights = moe_weights(dtype, joined=True)
    entry = 1 + 0.2 * draw(64).flip(0)
    x, residual, norm, eps = ends(draw(3, 64, dtype=dtype))
    kernels = Kernels(ROUTED | {"moe": "triton", "add_rms_norm": "triton"})
    for row in (0, 1, 2) if ON_A_CARD else (2,):
        one = (x[row : row + 1], residual[row : row + 1], entry, norm, eps, 1, weights, kernels)
        for got, want in zip(inside(*one), apart(*one), strict=True):
            equal(got, want, dtype)
    if ON_A_CARD:
        whole = apart(x, residual, entry, norm, eps, 3, weights, kernels)
        assert all(torch.equal(a, b[2:]) for a, b in zip(inside(*one), whole, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_head_in_fp32_takes_the_same_token_unless_it_is_close(dtype: torch.dtype) -> None:
    x, weight = draw(6, 64, dtype=dtype), draw(100, 64, dtype=dtype)
    got = greedy_triton_fp32(x, weight)
    assert torch.equal(got, (x.double() @ weight.double().T).argmax(dim=-1))
    assert (got == greedy_triton(x, weight)).float().mean() > 0.5


@ON_CPU_SLOW
@pytest.mark.parametrize("dtype", ATTENTION_DTYPES, ids=str)
def test_three_kernels_attend_as_five(two_layers, dtype: torch.dtype) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    got, _ = attention_outputs(two_layers, 1, dtype, "triton_three", WINDOWS)
    close(got, attention_outputs(two_layers, 1, dtype, "reference", WINDOWS)[0], dtype)
    if ON_A_CARD:
        whole, split = (
            attention_outputs(two_layers, 1, dtype, "triton_three", windows)[0] for windows in ((17, 4), (1, 12, 8))
        )
        assert torch.equal(whole, split)


@ON_CPU_SLOW
@pytest.mark.parametrize("tile", [4, 16])
def test_a_value_tile_changes_no_state(two_layers, tile: int) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    assert tile in VALUE_TILES
    windows = WINDOWS[:2]
    got, state = attention_outputs(two_layers, 0, torch.float32, f"triton_bv{tile}", windows)
    want, others = attention_outputs(two_layers, 0, torch.float32, "triton", windows)
    assert all(torch.equal(one, other) for one, other in zip(state, others, strict=True))
    assert float((got - want).norm() / want.norm()) < TOLERANCE[torch.float32]
