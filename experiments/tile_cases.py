"""The kernels of a decode step at full width, each with its candidate tiles and operands, for the sweep to time.

The surprise: a case holds more copies of its operands than any cache, because a warm weight flatters small tiles.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import linear

from ling_runtime.config import TILE
from ling_runtime.memory.device import DeviceLatent, DeviceWindow
from ling_runtime.memory.latent import PAGE
from ling_runtime.ops.kda import KdaStaged, KdaState, KdaWeights
from ling_runtime.ops.mla import MlaWeights
from ling_runtime.ops.router import RouterWeights
from ling_runtime.ops.triton.kda import kda_window_triton
from ling_runtime.ops.triton.linear import Tiles, linear_triton
from ling_runtime.ops.triton.mla import mla_window_triton
from ling_runtime.ops.triton.moe import expert_hidden, expert_out
from ling_runtime.ops.triton.router import route_triton

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

LINEAR = {
    "kda in": (5128, 2560),
    "out": (2560, 1024),
    "mla in": (2120, 2560),
    "dense up": (3072, 2560),
    "dense down": (2560, 1536),
    "lm_head": (39296, 2560),
}
LINEAR_TILES = (
    Tiles(16, 64, 2, 8),
    Tiles(16, 64, 2, 12),
    Tiles(16, 128, 2, 8),
    Tiles(16, 128, 2, 4),
    Tiles(16, 128, 2, 6),
    Tiles(16, 128, 4, 6),
    Tiles(32, 64, 2, 8),
    Tiles(32, 128, 4, 4),
    Tiles(32, 128, 4, 6),
    Tiles(64, 128, 4, 4),
)
UP_TILES = (
    Tiles(16, 128, 2, 5),
    Tiles(32, 64, 4, 6),
    Tiles(32, 128, 4, 3),
    Tiles(32, 128, 4, 4),
    Tiles(32, 256, 4, 2),
    Tiles(64, 64, 4, 4),
    Tiles(64, 128, 8, 3),
)
GATE_TILES = (
    (Tiles(16, 64, 2, 5), 8),
    (Tiles(16, 64, 4, 5), 8),
    (Tiles(16, 128, 4, 3), 8),
    (Tiles(32, 64, 4, 5), 8),
    (Tiles(16, 128, 4, 5), 4),
    (Tiles(16, 64, 2, 3), 16),
)
DOWN_TILES = (
    Tiles(64, 64, 4, 4),
    Tiles(128, 64, 4, 3),
    Tiles(128, 64, 4, 4),
    Tiles(128, 32, 4, 6),
    Tiles(256, 64, 4, 3),
    Tiles(256, 64, 8, 3),
    Tiles(256, 32, 8, 6),
)
WALK_TILES = (4, 8, 16, 32)
UP_SPLITS = (1, 2, 4)
SPLIT_PAGES, CONTEXT = (1, 2, 4), 8192
EXPERTS, HIDDEN, INNER, SETS = 513, 2560, 192, 24
HEADS, WIDTH, TAPS, STREAMS = 8, 128, 4, 35
COLD_BYTES, GATES = 400e6, 80


@dataclass(frozen=True)
class Case:
    """One kernel with one tile; `launch(i)` uses the i-th copy of its operands."""

    name: str
    tiles: Tiles | None
    launch: Callable[[int], object]
    copies: int
    megabytes: float


def cases(windows: Sequence[int]) -> Iterator[Case]:
    """For windows of each of these numbers of rows."""
    yield from linear_cases(max(windows))
    for rows in windows:
        yield from (*walk_cases(rows), *mla_cases(rows), *gate_cases(rows), *expert_cases(rows))


def linear_cases(rows: int) -> Iterator[Case]:
    for name, (outputs, inner) in LINEAR.items():
        size = outputs * inner * 2
        copies = max(2, int(COLD_BYTES / size))
        weights = torch.randn(copies, outputs, inner, device="cuda", dtype=torch.bfloat16)
        x = torch.randn(rows, inner, device="cuda", dtype=torch.bfloat16)
        for tiles in LINEAR_TILES:
            yield Case(name, tiles, partial(_linear, x, weights, tiles), copies, size / 1e6)
        yield Case(name + " vendor", None, partial(_linear, x, weights, None), copies, size / 1e6)


def _linear(x: Tensor, weights: Tensor, tiles: Tiles | None, i: int) -> Tensor:
    return linear(x, weights[i]) if tiles is None else linear_triton(x, weights[i], tiles)


def gate_cases(rows: int) -> Iterator[Case]:
    x = torch.randn(rows, HIDDEN, device="cuda", dtype=torch.bfloat16)
    gates, bias = torch.randn(GATES, EXPERTS - 1, HIDDEN, device="cuda"), torch.randn(EXPERTS - 1, device="cuda")
    routers = [
        RouterWeights(gate=gate, bias=bias, groups=8, kept_groups=4, experts_per_row=8, scale=2.5) for gate in gates
    ]
    for tiles, splits in GATE_TILES:
        launch = partial(_route, x, routers, tiles, splits)
        yield Case(f"router {rows} /{splits}", tiles, launch, GATES, gates[0].numel() * 4 / 1e6)


def _route(x: Tensor, routers: list[RouterWeights], tiles: Tiles, splits: int, i: int) -> object:
    return route_triton(x, routers[i], tiles, splits)


def expert_cases(rows: int) -> Iterator[Case]:
    x = torch.randn(rows, HIDDEN, device="cuda", dtype=torch.bfloat16)
    gate_up = torch.randn(EXPERTS, 2 * INNER, HIDDEN, device="cuda", dtype=torch.bfloat16)
    down = torch.randn(EXPERTS, HIDDEN, INNER, device="cuda", dtype=torch.bfloat16)
    ids = torch.stack([torch.randperm(EXPERTS - 1, device="cuda")[:8] for _ in range(SETS * rows)]).view(SETS, rows, 8)
    shape, dtype = ((2, 9, 2 * INNER), torch.float32) if rows == 1 else ((rows, 9, INNER), torch.bfloat16)
    hidden = torch.randn(shape, device="cuda", dtype=dtype)
    megabytes = (statistics.fmean(len(one.unique()) for one in ids) + 1) * HIDDEN * INNER * 2 / 1e6
    for splits in UP_SPLITS:
        for tiles in UP_TILES:
            launch = partial(_up, x, ids, gate_up, tiles, splits)
            yield Case(f"moe up {rows} /{splits}", tiles, launch, SETS, 2 * megabytes)
    for tiles in DOWN_TILES:
        yield Case(f"moe down {rows}", tiles, partial(_down, hidden, ids, down, tiles), SETS, megabytes)


def _up(x: Tensor, ids: Tensor, gate_up: Tensor, tiles: Tiles, splits: int, i: int) -> Tensor:
    return expert_hidden(x, ids[i], gate_up, (None, None), EXPERTS - 1, tiles, splits)


def _down(hidden: Tensor, ids: Tensor, down: Tensor, tiles: Tiles, i: int) -> Tensor:
    return expert_out(hidden, ids[i], down, (None, None), EXPERTS - 1, tiles)


def walk_cases(rows: int, tiles: tuple[int, ...] = WALK_TILES) -> Iterator[Case]:
    """The KDA window half a chunk past its boundary, two rows past its last window, over the states of all layers."""
    size, chunks, closed = HEADS * WIDTH, -(-(TILE - 1 + rows) // TILE), (TILE - 1 + rows) // TILE
    projected = torch.randn(rows, 5 * size + HEADS, device="cuda", dtype=torch.bfloat16)
    one, start = torch.ones(1, dtype=torch.int64, device="cuda"), torch.full((1,), TILE // 2, device="cuda")
    window = DeviceWindow(batch=1, rows=rows, slot_index=one, start_index=start)
    weights = KdaWeights(
        conv=torch.randn(3 * size, TAPS, device="cuda"),
        gate_scale=torch.ones(2 * size + HEADS, device="cuda"),
        gate_bias=torch.zeros(2 * size + HEADS, device="cuda"),
        o_norm=torch.ones(WIDTH, device="cuda"),
        out=torch.randn(HIDDEN, size, device="cuda", dtype=torch.bfloat16),
        lower_bound=-5.0,
        eps=1e-6,
    )
    states, walked = [], start.new_full((1,), TILE // 2 - 2)
    for _ in range(STREAMS):
        ring = torch.rand(2, TILE, HEADS, 4 * WIDTH + 1, device="cuda") - 0.5
        conv = torch.randn(2, TAPS - 1, 3 * size, device="cuda", dtype=torch.bfloat16)
        staged = KdaStaged(
            conv.new_zeros(1, TAPS - 1 + rows, 3 * size),
            ring.new_zeros(1, chunks, TILE, HEADS, 4 * WIDTH + 1),
            ring.new_zeros(1, closed + 1, HEADS, WIDTH, WIDTH),
        )
        state, lead = torch.randn(2, 2, HEADS, WIDTH, WIDTH, device="cuda").unbind()
        states.append(KdaState(conv, ring, state, one, staged, (lead, walked)))
    for tile in tiles:
        launch = partial(_walk, projected, window, weights, states, tile)
        yield Case(f"kda window {rows} x{tile}", None, launch, STREAMS, size * WIDTH * 4 / 1e6)


def _walk(
    projected: Tensor, window: DeviceWindow, weights: KdaWeights, states: list[KdaState], tile: int, i: int
) -> object:
    return kda_window_triton(projected, window, weights, states[i], linear_triton, tile)  # type: ignore[arg-type]


def mla_cases(rows: int) -> Iterator[Case]:
    """Attention over a long context, each launch on the cache of another layer."""
    nope, rank, rope = 128, 512, 64
    pages = CONTEXT // PAGE + 1
    projected = torch.randn(rows, HEADS * (nope + rope + 1) + rank + rope, device="cuda", dtype=torch.bfloat16)
    one, start = torch.ones(1, dtype=torch.int64, device="cuda"), torch.full((1,), CONTEXT - 1, device="cuda")
    window = DeviceWindow(batch=1, rows=rows, slot_index=one, start_index=start)
    weights = MlaWeights(
        kv_norm=torch.ones(rank, device="cuda", dtype=torch.bfloat16),
        key_up=torch.randn(HEADS, nope, rank, device="cuda", dtype=torch.bfloat16),
        value_up=torch.randn(HEADS, rank, nope, device="cuda", dtype=torch.bfloat16),
        rope=torch.randn(pages * PAGE, 2, rope // 2, device="cuda"),
        scale=(nope + rope) ** -0.5,
        eps=1e-6,
    )
    table = torch.arange(pages, device="cuda").view(1, -1)
    caches = torch.randn(STREAMS, pages, PAGE, rank + rope, device="cuda", dtype=torch.bfloat16)
    views = [DeviceLatent(cache, window, table) for cache in caches]
    for split in SPLIT_PAGES:
        launch = partial(_mla, projected, views, weights, split)
        yield Case(f"mla window {rows} /{split}", None, launch, STREAMS, caches[0].numel() * 2 / 1e6)


def _mla(projected: Tensor, views: list[DeviceLatent], weights: MlaWeights, split: int, i: int) -> Tensor:
    return mla_window_triton(projected, views[i], weights, split)  # type: ignore[arg-type]
