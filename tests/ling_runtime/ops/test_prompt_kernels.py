"""The prompt's operators in Triton against the references, and what they promise about parts of a prompt."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pytest
import torch
from torch.nn.functional import rms_norm

from tests.ling_runtime.interpreted import DEVICE  # isort: skip - before anything of Triton

from ling_runtime.memory.caches import Caches
from ling_runtime.memory.window import Window
from ling_runtime.model.attention import KdaAttention, MlaAttention
from ling_runtime.model.packing import Packer
from ling_runtime.ops.kda import recurrent
from ling_runtime.ops.linear import linear, pad_rows
from ling_runtime.ops.moe_layer import MoeWeights, moe_layer
from ling_runtime.ops.prompt import PROMPT_CHUNK, PROMPT_VARIANTS
from ling_runtime.ops.registry import Kernels
from ling_runtime.ops.rope import rope_table
from ling_runtime.ops.router import route
from ling_runtime.ops.triton.prompt_chunks import prepare, read, walk
from ling_runtime.ops.triton.prompt_kda import Ready
from ling_runtime.ops.triton.prompt_linear import WideTiles, linear_prompt
from ling_runtime.ops.triton.prompt_moe import experts_of, moe_prompt
from ling_runtime.ops.triton.prompt_router import route_prompt
from ling_runtime.ops.triton.prompt_sort import sort_pairs
from ling_runtime.weights import initialise
from tests.ling_runtime.ops.held import DTYPES, close, draw, router_weights

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.config import ModelConfig

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("interpreter")]
CHOSEN = Kernels(PROMPT_VARIANTS)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "outputs", "inner"), [(160, 72, 96), (48, 200, 80)])
def test_wide_products(dtype: torch.dtype, rows: int, outputs: int, inner: int) -> None:
    x, weight = draw(rows, inner, dtype=dtype), draw(outputs, inner, dtype=dtype, scale=inner**-0.5)
    close(linear_prompt(x, weight, CHOSEN, WideTiles(64, 32, 32, 4, 2)), linear(x, weight), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_router_selects_as_the_reference(dtype: torch.dtype) -> None:
    x, weights = draw(32, 64, dtype=dtype), router_weights()
    (ids, chosen), (want_ids, want) = route_prompt(x, weights, CHOSEN), route(x, weights)
    assert torch.equal(ids, want_ids)
    torch.testing.assert_close(chosen, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shared", [True, False])
def test_every_pair_has_one_place_in_the_tiles_of_its_expert(shared: bool) -> None:
    rows, top, experts, height = 700, 3, 11, 16
    ids = draw(rows, experts - 1).topk(top, dim=1).indices + 1  # the first expert has no pair
    order = sort_pairs(ids, experts, height=height, shared=shared)
    flat, seen = ids.flatten().tolist(), []
    for tile, expert in enumerate(order.experts.tolist()):
        if not 0 <= expert < experts:
            continue
        first, count = int(order.first[expert]), int(order.counts[expert])
        live = min(height, count - (tile - first) * height)
        pairs = order.pairs[tile * height : tile * height + live].tolist()
        assert live > 0
        assert {flat[pair] for pair in pairs} == {expert}
        seen += pairs
    assert sorted(seen) == list(range(rows * top))
    of_shared = [tile for tile, expert in enumerate(order.experts.tolist()) if expert == experts]
    assert len(of_shared) == (-(-rows // height) if shared else 0)
    assert int(order.counts[experts]) == (rows if shared else 0)


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


def ends(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
    """Rows, a residual, the next norm's weight and its epsilon."""
    return x, x.sin(), 1 + 0.1 * draw(x.shape[1]), 1e-6


@pytest.mark.parametrize(("joined", "dtype"), [(True, torch.bfloat16), (False, torch.float32)], ids=str)
def test_the_layer_of_experts(dtype: torch.dtype, joined: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In two parts of rows, the second of which is short; the router has its own test."""
    monkeypatch.setattr("ling_runtime.ops.triton.prompt_moe.MOST", 32)
    x, weights = pad_rows(draw(42, 64, dtype=dtype)), moe_weights(dtype, joined=joined)
    kernels = Kernels(PROMPT_VARIANTS | {"prompt_router": "reference"})
    got, want = moe_prompt(*ends(x), 42, weights, kernels), moe_layer(*ends(x), 42, weights, Kernels())
    for one, other in zip(got, want, strict=True):
        close(one, other, dtype)


def test_a_pair_has_the_same_bits_whatever_shares_its_tile() -> None:
    x, weights = draw(96, 64), moe_weights(torch.float32, joined=True)
    ids = route(x, weights.router)[0].contiguous()
    whole = experts_of(x, ids, weights)
    back = torch.arange(95, -1, -1, device=DEVICE)
    mixed = experts_of(x[back].contiguous(), ids[back].contiguous(), weights)[back]
    if DEVICE.type == "cuda":
        assert torch.equal(mixed, whole)
    torch.testing.assert_close(mixed, whole, rtol=1e-5, atol=1e-6)


@pytest.fixture
def two_layers(small_config: ModelConfig) -> ModelConfig:
    """One layer of each kind, so that pools commit after one; few heads, for the interpreter runs programs in turn."""
    limits = {"expert_swiglu_limit_list": (0.0, 0.0), "share_expert_swiglu_limit_list": (0.0, 0.0)}
    return replace(small_config, num_hidden_layers=2, num_attention_heads=2, num_nextn_predict_layers=0, **limits)


class Layer:
    """One attention layer with a request's state, behind another request."""

    def __init__(self, config: ModelConfig, layer: int, dtype: torch.dtype, selection: dict[str, str]) -> None:
        self.config, self.mla, self.dtype = config, config.is_mla(layer), dtype
        weights = Packer(initialise(config, seed=3), f"model.layers.{layer}.attention.", dtype, DEVICE)
        rope = rope_table(config, 512).to(DEVICE, torch.float32)
        kernels = Kernels(selection)
        self._attend = (
            MlaAttention(config, weights, 0, rope, kernels) if self.mla else KdaAttention(config, weights, 0, kernels)
        )
        self.caches = Caches(config, max_requests=2, pages=12, dtype=dtype, device=DEVICE)
        gone, _ = self.caches.reserve(64), self.caches.reserve(64)
        self.caches.release(gone)  # so that pages are not in one piece
        self.slot, self.length = self.caches.reserve(400), 0

    def __call__(self, rows: torch.Tensor, *, prompt: bool) -> torch.Tensor:
        """Outputs of `rows`, all accepted."""
        window = Window(slots=(self.slot,), starts=(self.length,), rows=len(rows), prompt=prompt, device=DEVICE)
        out = self._attend(pad_rows(rows), self.caches.begin(window))
        if not self.mla:
            self.caches.recurrent.commit(window, torch.tensor([len(rows)], device=DEVICE))
        self.length += len(rows)
        return out[: len(rows)]

    def left(self) -> tuple[torch.Tensor, ...]:
        """What decoding would find: recurrent state, or the cache's rows."""
        if self.mla:
            pages = torch.tensor(self.caches.latent.table(self.slot), device=DEVICE)
            return (self.caches.latent.rows[0].index_select(0, pages).flatten(0, 1)[: self.length],)
        return self.caches.recurrent.snapshot(self.slot)


class Norm(NamedTuple):
    """What reading takes of a layer's weights."""

    o_norm: Tensor
    eps: float


LAYERS = [pytest.param(0, id="kda"), pytest.param(1, id="mla")]


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("dtype", DTYPES if DEVICE.type == "cuda" else DTYPES[:1], ids=str)
def test_attention_follows_the_reference_and_leaves_what_decoding_reads(
    two_layers: ModelConfig, dtype: torch.dtype, layer: int
) -> None:
    """A prompt that ends inside a chunk, in two parts; then rows of decoding on what each of the two has left.

    Not in bf16 in the interpreter, which cuts what a card rounds.
    """
    ours, reference = (Layer(two_layers, layer, dtype, chosen) for chosen in (PROMPT_VARIANTS, {}))
    stream = draw(64 + 93 + 5, two_layers.hidden_size, dtype=dtype)
    for first, end, prompt in ((0, 64, True), (64, 157, True), (157, 162, False)):
        rows = stream[first:end]
        close(ours(rows, prompt=prompt), reference(rows, prompt=prompt), dtype)
        for got, want in zip(ours.left(), reference.left(), strict=True):
            close(got, want, dtype)


@pytest.mark.parametrize("width", [16, pytest.param(128, marks=[] if DEVICE.type == "cuda" else pytest.mark.slow)])
@pytest.mark.parametrize("keys", ["apart", "nearly one"])
@pytest.mark.parametrize("decay", [-0.001, -0.5, -4.99])
@pytest.mark.parametrize(("products", "error"), [("ieee", 2e-5), ("tf32", 3e-3)])
def test_the_recurrence_at_the_ends_of_its_range(
    decay: float, keys: str, products: str, error: float, width: int
) -> None:
    """From decays that leave a state alone to those that end it within a row, whose sums over a chunk reach -319; the
    rows behind the kept ones have outputs and leave the state as it was. The norm's eps is large, or it would raise the
    rounding of a row that is nearly zero to the size of the others.
    """
    heads, rows, kept = 2, 128, 112
    noise = draw(heads, rows, 4 * width + 1).double()
    query, key, value, gates, rate = noise.split([width, width, width, width, 1], dim=-1)
    key = 1 + 0.05 * key if keys == "nearly one" else key
    query, key = (x / x.norm(dim=-1, keepdim=True) for x in (query, key))
    log, rate = decay * (1 + 0.001 * gates.tanh()), rate.sigmoid()
    packed = torch.cat([query, key, value, log, rate], dim=-1).transpose(0, 1).unsqueeze(0)
    state = draw(heads, width, width).double()
    want, _ = recurrent(packed, state.unsqueeze(0))
    _, left = recurrent(packed[:, :kept], state.unsqueeze(0))
    sums = log.unflatten(1, (-1, PROMPT_CHUNK)).cumsum(2).flatten(1, 2)
    ready = Ready(*(x.float().contiguous() for x in (query, key, value, sums, rate.squeeze(-1))), ring=noise)
    chunks = prepare(ready, kept, -5.0, products)
    end = walk(chunks, state.float(), products)
    weights, projected = Norm(1 + 0.1 * draw(width), 1.0), draw(rows, 5 * heads * width + heads)
    got = read(ready, chunks, projected, rows, weights, products)  # type: ignore[arg-type]
    normed = rms_norm(want[0], (width,), weights.o_norm.double(), weights.eps).flatten(1)
    gated = normed * projected[:, 4 * heads * width : 5 * heads * width].double().sigmoid()
    for one, other in ((got, gated), (end, left[0])):
        assert (one - other).norm() <= error * other.norm()
        assert products == "ieee" or (one - other).norm() > 1e-6 * other.norm(), "operands were to be rounded"


@pytest.mark.parametrize("layer", LAYERS)
def test_parts_of_a_prompt_change_no_bit(two_layers: ModelConfig, layer: int) -> None:
    """Parts begin at multiples of 64. Outputs on the card; the interpreter's products are the library's and are held to
    rounding, and to bits in what they leave where no product of another shape comes before it.
    """
    rows = draw(133, two_layers.hidden_size)
    whole, cut = (Layer(two_layers, layer, torch.float32, PROMPT_VARIANTS) for _ in range(2))
    want = whole(rows, prompt=True)
    got = torch.cat([cut(part, prompt=True) for part in (rows[:64], rows[64:128], rows[128:])])
    assert torch.equal(got, want)
    assert all(torch.equal(one, other) for one, other in zip(cut.left(), whole.left(), strict=True))
