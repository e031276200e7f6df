"""`python -m experiments.prefill_sweep`: every candidate tile of a prompt's kernels at full width, on a card.

The tiles in `ling_runtime/ops/triton/prompt_*.py` are to come from here. A prompt's operands are larger than any cache,
so plain launches one behind the other are what a layer sees. `--warm I/N` compiles only its share of the cases, so that
N processes can fill Triton's cache side by side before the one that measures.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import linear

from experiments import allowed, card
from ling_runtime.memory.latent import PAGE, LatentPool, LatentView
from ling_runtime.memory.window import Window
from ling_runtime.ops.mla import MlaWeights
from ling_runtime.ops.moe_layer import MoeWeights
from ling_runtime.ops.registry import Kernels
from ling_runtime.ops.router import RouterWeights
from ling_runtime.ops.triton.prompt_chunks import Chunks, WalkTiles, walk
from ling_runtime.ops.triton.prompt_linear import WideTiles, linear_prompt
from ling_runtime.ops.triton.prompt_mla import AttentionTiles, attend_prompt
from ling_runtime.ops.triton.prompt_moe import experts_of
from ling_runtime.ops.triton.prompt_router import route_prompt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

LINEAR = {"kda in": (5128, 2560), "out": (2560, 1024), "mla in": (2120, 2560)}
LINEAR_TILES = (
    WideTiles(128, 128, 64, 8, 4),
    WideTiles(128, 128, 64, 4, 4),
    WideTiles(128, 256, 64, 8, 3),
    WideTiles(256, 128, 64, 8, 3),
    WideTiles(128, 128, 128, 8, 3),
    WideTiles(128, 128, 32, 8, 6),
)
GATE_TILES = (WideTiles(128, 128, 32, 8, 3), WideTiles(128, 64, 64, 4, 3), WideTiles(64, 128, 64, 4, 3))
EXPERT_TILES = (
    (WideTiles(128, 128, 64, 8, 4), WideTiles(128, 128, 64, 8, 3)),
    (WideTiles(64, 128, 64, 4, 4), WideTiles(64, 128, 64, 4, 3)),
    (WideTiles(64, 128, 64, 4, 3), WideTiles(64, 256, 64, 8, 3)),
    (WideTiles(128, 128, 64, 4, 3), WideTiles(128, 256, 64, 8, 3)),
    (WideTiles(128, 128, 128, 8, 2), WideTiles(128, 128, 32, 8, 4)),
)
WALK_TILES = (WalkTiles(16, 4, 2), WalkTiles(16, 4, 3), WalkTiles(16, 8, 2), WalkTiles(32, 8, 2), WalkTiles(8, 4, 2))
ATTENTION_TILES = (
    AttentionTiles(128, 64, 8, 2),
    AttentionTiles(128, 64, 8, 3),
    AttentionTiles(128, 128, 8, 2),
    AttentionTiles(64, 64, 4, 2),
    AttentionTiles(64, 64, 4, 3),
    AttentionTiles(128, 64, 4, 2),
)
HIDDEN, INNER, EXPERTS, TOP, HEADS, WIDTH, CHUNK = 2560, 192, 512, 8, 8, 128, 64
RANK, NOPE, ROPE = 512, 128, 64


@dataclass(frozen=True)
class Case:
    """One kernel with one tile, and the operations of a launch."""

    name: str
    tiles: Any
    launch: Callable[[], object]
    flops: float


def noise(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, dtype=dtype, device="cuda").mul_(shape[-1] ** -0.5)


def linear_cases(rows: int) -> Iterator[Case]:
    kernels = Kernels()
    for name, (outputs, inner) in LINEAR.items():
        x, weight, flops = noise(rows, inner), noise(outputs, inner), 2.0 * rows * outputs * inner
        for tiles in LINEAR_TILES:
            yield Case(name, tiles, partial(linear_prompt, x, weight, kernels, tiles), flops)
        yield Case(name, "the vendor's", partial(linear, x, weight), flops)


def routed(experts: int = EXPERTS) -> RouterWeights:
    gate = noise(experts, HIDDEN, dtype=torch.float32)
    bias = torch.zeros(experts, device="cuda")
    return RouterWeights(gate=gate, bias=bias, groups=8, kept_groups=4, experts_per_row=TOP, scale=2.5)


def expert_cases(rows: int) -> Iterator[Case]:
    """The router with its selection; sort, up and down together, which share the rows of a tile."""
    x, router, kernels = noise(rows, HIDDEN) * HIDDEN**0.5, routed(), Kernels()
    for tiles in GATE_TILES:
        yield Case("router", tiles, partial(route_prompt, x, router, kernels, tiles), 6.0 * rows * HIDDEN * EXPERTS)
    gate_up, down = noise(EXPERTS + 1, 2 * INNER, HIDDEN), noise(EXPERTS + 1, HIDDEN, INNER)
    weights = MoeWeights(
        router=router, gate_up=gate_up, down=down, experts=EXPERTS, limit=None, shared_up=gate_up[-1],
        shared_down=down[-1], shared_limit=None, joined=True,
    )  # fmt: skip
    ids = torch.rand(rows, EXPERTS, device="cuda").topk(TOP, dim=1).indices.contiguous()
    for up, low in EXPERT_TILES:
        run = partial(experts_of, x, ids, weights, up, low)
        yield Case("experts", (up, low), run, 6.0 * rows * (TOP + 1) * HIDDEN * INNER)


def walk_cases(rows: int) -> Iterator[Case]:
    count, wide = rows // CHUNK, torch.float32
    sink, update = (noise(HEADS, count, CHUNK, WIDTH, dtype=wide) for _ in range(2))
    keys = noise(HEADS, count, WIDTH, CHUNK, dtype=wide)
    within, starts = noise(HEADS, count, CHUNK, CHUNK, dtype=wide), noise(HEADS, count, WIDTH, WIDTH, dtype=wide)
    chunks = Chunks(within, sink, update, keys, torch.full((HEADS, count, WIDTH), 0.5, device="cuda"), starts)
    state = noise(HEADS, WIDTH, WIDTH, dtype=wide)
    for tiles in WALK_TILES:
        yield Case("kda walk", tiles, partial(walk, chunks, state, "tf32", tiles), 4.0 * rows * HEADS * WIDTH * WIDTH)


def attention_cases(rows: int) -> Iterator[Case]:
    device, pages = torch.device("cuda"), rows // PAGE + 1
    pool = LatentPool(1, pages + 1, RANK + ROPE, dtype=torch.bfloat16, device=device)
    pool.rows.normal_()
    pool.reserve(1, rows)
    window = Window(slots=(1,), starts=(0,), rows=rows, prompt=True, device=device)
    view: LatentView = pool.view(0, window, pool.places(window))
    weights = MlaWeights(
        kv_norm=torch.ones(RANK, device=device, dtype=torch.bfloat16), key_up=noise(HEADS, NOPE, RANK),
        value_up=noise(HEADS, RANK, NOPE), rope=torch.randn(rows, 2, ROPE // 2, device=device),
        scale=(NOPE + ROPE) ** -0.5, eps=1e-6,
    )  # fmt: skip
    projected = torch.randn(rows, HEADS * (NOPE + ROPE + 1) + RANK + ROPE, device=device, dtype=torch.bfloat16)
    keys, values = (torch.randn(rows, HEADS, NOPE, device=device, dtype=torch.bfloat16) for _ in range(2))
    flops = 1.0 * rows * rows * HEADS * (2 * NOPE + ROPE)
    for tiles in ATTENTION_TILES:
        yield Case("attention", tiles, partial(attend_prompt, projected, keys, values, view, weights, tiles), flops)


def microseconds(case: Case, rounds: int = 12) -> float:
    """Median over launches between events, queued ahead of the device."""
    for _ in range(3):
        case.launch()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(rounds + 1)]
    marks[0].record()
    for mark in marks[1:]:
        case.launch()
        mark.record()
    torch.cuda.synchronize()
    return 1e3 * float(statistics.median(a.elapsed_time(b) for a, b in pairwise(marks)))


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time tile candidates of a prompt's kernels.")
    parser.add_argument("--warm", type=allowed.share, metavar="I/N", help="only compile every N-th case from I")
    parser.add_argument("--rows", type=allowed.whole(CHUNK), default=8192)
    return parser.parse_args(argv)


def main() -> None:
    options = arguments()
    card.required()
    makers = (attention_cases, linear_cases, expert_cases, walk_cases)
    cases = [case for make in makers for case in make(options.rows)]
    if options.warm:
        first, step = options.warm
        cases = cases[first::step]
    for case in cases:
        try:
            us = microseconds(case, 1 if options.warm else 12)
        except Exception as error:  # noqa: BLE001 - a tile too large for the card is a result here
            print(f"{case.name:<12}{case.tiles!s:<130} {type(error).__name__}", flush=True)
            continue
        if not options.warm:
            print(f"{case.name:<12}{case.tiles!s:<130}{us:>10.1f} us{case.flops / us / 1e6:>8.0f} TFLOP/s", flush=True)


if __name__ == "__main__":
    main()
