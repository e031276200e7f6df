"""Triton variants against the reference, on the card or in Triton's interpreter, and the row invariance they claim."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.ling_runtime.interpreted import DEVICE  # isort: skip - before anything of Triton

from ling_runtime.memory.caches import Caches
from ling_runtime.memory.window import Window
from ling_runtime.model.attention import KdaAttention, MlaAttention
from ling_runtime.model.packing import Packer
from ling_runtime.ops.head import greedy, greedy_of_shard
from ling_runtime.ops.linear import linear, pad_rows
from ling_runtime.ops.moe_layer import MoeWeights, moe_layer
from ling_runtime.ops.norm import add_rms_norm, rms_norm
from ling_runtime.ops.registry import Kernels
from ling_runtime.ops.rope import rope_table
from ling_runtime.ops.router import route
from ling_runtime.ops.triton.head import greedy_of_shard_triton, greedy_triton, project_triton
from ling_runtime.ops.triton.linear import Tiles, linear_triton
from ling_runtime.ops.triton.moe_layer import moe_triton
from ling_runtime.ops.triton.norm import add_rms_norm_triton, rms_norm_triton
from ling_runtime.ops.triton.router import route_triton
from ling_runtime.weights import initialise
from tests.ling_runtime.ops.held import DTYPES, ON_CPU_SLOW, close, draw, router_weights

pytestmark = pytest.mark.usefixtures("interpreter")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "outputs", "inner"), [(16, 48, 64), (32, 40, 96), (16, 33, 80)])
def test_linear(dtype: torch.dtype, rows: int, outputs: int, inner: int) -> None:
    x, weight = draw(rows, inner, dtype=dtype), draw(outputs, inner, dtype=dtype, scale=inner**-0.5)
    close(linear_triton(x, weight, Tiles(16, 32, 2, 2)), linear(x, weight), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_norms(dtype: torch.dtype) -> None:
    x, residual, weight = draw(16, 80, dtype=dtype), draw(16, 80, dtype=dtype).flip(0), 1 + 0.1 * draw(80)
    close(rms_norm_triton(x, weight, 1e-6), rms_norm(x, weight, 1e-6), dtype)
    for got, want in zip(
        add_rms_norm_triton(x, residual, weight, 1e-6), add_rms_norm(x, residual, weight, 1e-6), strict=True
    ):
        close(got, want, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_router_selects_as_the_reference(dtype: torch.dtype) -> None:
    x, weights = draw(32, 64, dtype=dtype), router_weights()
    (ids, chosen), (want_ids, want) = route_triton(x, weights), route(x, weights)
    assert torch.equal(ids, want_ids)
    torch.testing.assert_close(chosen, want, rtol=1e-5, atol=1e-6)


def test_router_gives_ties_to_the_lowest_expert() -> None:
    x, weights = torch.zeros(16, 64, device=DEVICE), router_weights()
    weights.bias.zero_()
    assert torch.equal(route_triton(x, weights)[0], route(x, weights)[0])


@pytest.mark.whole
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_whole_logits_choose_as_the_head_without_logits_does(dtype: torch.dtype) -> None:
    """Logits that lie so close that bf16 makes many of them equal: the order of one sum is all that decides."""
    x = draw(17, 96, dtype=dtype)
    weight = (draw(1, 96).expand(300, -1) + 0.01 * draw(300, 96)).to(dtype)
    logits = project_triton(x, weight)
    assert torch.equal(logits.argmax(dim=1), greedy_triton(x, weight))
    if dtype == torch.bfloat16:
        assert (logits == logits.amax(dim=1, keepdim=True)).sum() > len(x), "there are ties"


def moe_weights(dtype: torch.dtype, *, joined: bool) -> MoeWeights:
    experts, hidden, inner = 16, 64, 24
    gate_up = draw(experts + joined, 2 * inner, hidden, dtype=dtype, scale=hidden**-0.5)
    down = draw(experts + joined, hidden, inner, dtype=dtype, scale=inner**-0.5)
    apart = (draw(96, hidden, dtype=dtype, scale=hidden**-0.5), draw(hidden, 48, dtype=dtype, scale=0.1))
    shared_up, shared_down = (gate_up[-1], down[-1]) if joined else apart
    return MoeWeights(
        router=router_weights(), gate_up=gate_up, down=down, experts=experts, limit=0.4, shared_up=shared_up,
        shared_down=shared_down, shared_limit=0.7, joined=joined,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("rows", [1, pytest.param(6, marks=pytest.mark.whole), pytest.param(17, marks=ON_CPU_SLOW)])
def test_moe_layer(dtype: torch.dtype, joined: bool, rows: int) -> None:
    x, weights = pad_rows(draw(rows, 64, dtype=dtype)), moe_weights(dtype, joined=joined)
    both = [run(*ends(x), rows, weights, Kernels()) for run in (moe_triton, moe_layer)]
    for got, want in zip(*both, strict=True):
        close(got, want, dtype)


def ends(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
    """Rows, a residual, the next norm's weight and its epsilon."""
    return x, x.sin(), 1 + 0.1 * draw(x.shape[1]), 1e-6


@ON_CPU_SLOW
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [17, 66])
def test_a_row_of_the_moe_layer_has_the_same_bits_alone_and_in_any_window(dtype: torch.dtype, rows: int) -> None:
    x, weights = draw(rows, 64, dtype=dtype), moe_weights(dtype, joined=True)
    kernels = Kernels({"router": "triton"})
    whole = moe_triton(*ends(pad_rows(x)), rows, weights, kernels)[0]
    for row in (0, 5, rows - 1):
        alone = moe_triton(*ends(pad_rows(x[row : row + 1])), 1, weights, kernels)[0]
        assert torch.equal(alone[0], whole[row])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_greedy_head_takes_the_best_and_the_lowest_on_a_tie(dtype: torch.dtype) -> None:
    x, weight = draw(6, 64, dtype=dtype), draw(100, 64, dtype=dtype)
    assert torch.equal(greedy_triton(x, weight), greedy(x, weight))
    weight[70] = weight[30] = 3 * x[2]
    assert int(greedy_triton(x, weight)[2]) == 30


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_shard_head_gives_the_best_logit_too(dtype: torch.dtype) -> None:
    x, weight = draw(6, 64, dtype=dtype), draw(100, 64, dtype=dtype)
    weight[70] = weight[30] = 3 * x[2]
    best, reference = greedy_of_shard_triton(x, weight, 1000), greedy_of_shard(x, weight, 1000)
    assert torch.equal(best[:, 1], reference[:, 1])
    assert best[2, 1] == 1030
    close(best[:, 0], reference[:, 0], dtype)


def attention_outputs(  # type: ignore[no-untyped-def]
    config, layer: int, dtype: torch.dtype, variant: str, windows: tuple[int, ...]
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """One attention layer over a stream of rows in windows whose rows are all accepted, behind another request: its
    outputs and the state they leave.
    """
    weights = Packer(initialise(config, seed=3), f"model.layers.{layer}.attention.", dtype, DEVICE)
    linear = "triton" if DEVICE.type == "cuda" else "reference"  # NumPy's products are not row invariant
    kernels = Kernels({"linear": linear, "mla_window" if config.is_mla(layer) else "kda_window": variant})
    rope = rope_table(config, 256).to(DEVICE, torch.float32)
    attend = (
        MlaAttention(config, weights, 0, rope, kernels)
        if config.is_mla(layer)
        else KdaAttention(config, weights, 0, kernels)
    )
    caches = Caches(config, max_requests=2, pages=8, dtype=dtype, device=DEVICE)
    caches.reserve(64)
    slot, start, found = caches.reserve(200), 0, []
    stream = draw(sum(windows), config.hidden_size, dtype=dtype)
    for rows in windows:
        window = Window(slots=(slot,), starts=(start,), rows=rows, device=DEVICE)
        found.append(attend(pad_rows(stream[start : start + rows]), caches.begin(window))[:rows])
        if not config.is_mla(layer):
            caches.recurrent.commit(window, torch.tensor([rows], device=DEVICE))
        start += rows
    return torch.cat(found), caches.recurrent.snapshot(slot)


LAYERS = [pytest.param(0, id="kda"), pytest.param(1, id="mla")]
WINDOWS, ATTENTION_DTYPES = ((7, 6, 1, 17, 4, 9, 30), DTYPES) if DEVICE.type == "cuda" else ((9, 4, 6), DTYPES[:1])


@pytest.fixture
def two_layers(small_config):  # type: ignore[no-untyped-def]
    """One layer of each kind, so that pools commit after one; few heads, for the interpreter runs programs in turn."""
    limits = {"expert_swiglu_limit_list": (0.0, 0.0), "share_expert_swiglu_limit_list": (0.0, 0.0)}
    return replace(small_config, num_hidden_layers=2, num_attention_heads=2, num_nextn_predict_layers=0, **limits)


@ON_CPU_SLOW
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("dtype", ATTENTION_DTYPES, ids=str)
def test_attention_follows_the_reference_through_a_growing_context(  # type: ignore[no-untyped-def]
    two_layers, dtype: torch.dtype, layer: int
) -> None:
    got, _ = attention_outputs(two_layers, layer, dtype, "triton", WINDOWS)
    close(got, attention_outputs(two_layers, layer, dtype, "reference", WINDOWS)[0], dtype)


@ON_CPU_SLOW
@pytest.mark.parametrize("layer", LAYERS if DEVICE.type == "cuda" else LAYERS[:1])
@pytest.mark.parametrize("dtype", ATTENTION_DTYPES, ids=str)
def test_attention_rows_have_the_same_bits_in_every_window(  # type: ignore[no-untyped-def]
    two_layers, dtype: torch.dtype, layer: int
) -> None:
    """On the card the outputs; in the interpreter, whose products are NumPy's and vary with the rows, the state."""
    whole, split = (attention_outputs(two_layers, layer, dtype, "triton", windows) for windows in ((17, 4), (1, 12, 8)))
    assert all(torch.equal(one, other) for one, other in zip(whole[1], split[1], strict=True))
    if DEVICE.type == "cuda":
        assert torch.equal(whole[0], split[0])
