"""Which pairs an expert's tiles hold, planned by kernels of their own before the experts run: two ways of it.

The experts of this runtime need no plan, each program finds its expert's rows by itself (`moe`); these are what
others run there, so that their price can be measured in the same step. `pair_axis` compares every pair with every
other in one program, whatever the number of experts; `two_launch` counts by expert in one kernel and places pairs by
atomic counters in another, in no fixed order inside an expert. A plan changes no bits: a row's product does not depend
on its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from ling_runtime.config import TILE
from ling_runtime.ops.moe import PAIR_LIMIT
from ling_runtime.ops.triton.launch import enter, launch, leave

if TYPE_CHECKING:
    from torch import Tensor


def by_pairs(ids: Tensor, shared: int | None, experts: int) -> Tensor:
    """ids [R, k] -> plan [n + 16 n] of n = R s pairs: the expert of each block or -1, then the pairs of its 16 rows,
    n where there is none; s = k + 1 with the expert `shared` in every row's last slot. In one launch up to 64 pairs.
    """
    rows, top = ids.shape
    slots = top + (shared is not None)
    pairs = rows * slots
    if pairs > PAIR_LIMIT:
        return by_counts(ids, shared, experts)
    plan = ids.new_empty(pairs * (1 + TILE))
    _by_pairs[(1,)](
        ids, plan, pairs, experts if shared is None else shared, top, slots, triton.next_power_of_2(pairs), TILE,
        **launch(), num_warps=4,
    )  # fmt: skip
    return plan


def by_counts(ids: Tensor, shared: int | None, experts: int) -> Tensor:
    """The same for any number of pairs, in two launches."""
    rows, top = ids.shape
    slots = top + (shared is not None)
    pairs = rows * slots
    plan = ids.new_empty(pairs * (1 + TILE))
    names = experts + (shared is not None)
    cursor = torch.empty(names, dtype=torch.int32, device=ids.device)
    block, last = triton.next_power_of_2(pairs), experts if shared is None else shared
    _count[(1,)](
        ids, plan, cursor, pairs, names, last, top, slots, block, triton.next_power_of_2(names), TILE, **launch(),
        num_warps=8,
    )  # fmt: skip
    _scatter[(1,)](ids, plan, cursor, pairs, last, top, slots, block, **launch(), num_warps=4)
    return plan


@triton.jit
def _names(ids, pair, valid, shared, TOP: tl.constexpr, S: tl.constexpr):
    """The expert of each pair."""
    named = tl.load(ids + pair // S * TOP + pair % S, mask=valid & (pair % S < TOP), other=0).to(tl.int32)
    return tl.where(pair % S == TOP, shared, named)


@triton.jit
def _by_pairs(
    ids, plan, pairs, shared, TOP: tl.constexpr, S: tl.constexpr, NP: tl.constexpr, TM: tl.constexpr, PDL: tl.constexpr
):
    enter(PDL)
    pair = tl.arange(0, NP)
    valid = pair < pairs
    name = tl.where(valid, _names(ids, pair, valid, shared, TOP, S), 0x7FFFFFFF)
    same = (name[:, None] == name[None, :]) & valid[:, None] & valid[None, :]
    rank = tl.sum((same & (pair[None, :] < pair[:, None])).to(tl.int32), axis=1)
    padded = (tl.sum(same.to(tl.int32), axis=1) + TM - 1) // TM * TM
    leads = valid & (rank == 0)
    before = leads[None, :] & (name[None, :] < name[:, None])
    first = tl.sum(tl.where(before, padded[None, :], 0), axis=1)
    total = tl.sum(tl.where(leads, padded, 0))
    block = pair[None, :] * TM  # a block for each pair is the most there can be
    here = leads[:, None] & (first[:, None] <= block) & (block < (first + padded)[:, None])
    expert = tl.sum(tl.where(here, name[:, None], 0), axis=0)
    tl.store(plan + pair, tl.where(pair * TM < total, expert, -1).to(tl.int64), mask=valid)
    for start in range(0, total, NP):
        tl.store(plan + pairs + start + pair, pairs.to(tl.int64), mask=start + pair < total)
    tl.debug_barrier()  # other warps have filled the same places
    tl.store(plan + pairs + first + rank, pair.to(tl.int64), mask=valid)
    leave(PDL)


@triton.jit
def _count(
    ids, plan, cursor, pairs, names, shared, TOP: tl.constexpr, S: tl.constexpr, NP: tl.constexpr, NE: tl.constexpr,
    TM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    enter(PDL)
    pair, expert = tl.arange(0, NP), tl.arange(0, NE)
    valid = pair < pairs
    count = tl.histogram(_names(ids, pair, valid, shared, TOP, S), NE, mask=valid)
    padded = (count + TM - 1) // TM * TM
    first = tl.cumsum(padded, axis=0) - padded
    total = tl.sum(padded)
    tl.store(cursor + expert, first, mask=expert < names)
    for start in range(0, tl.max(padded), TM):
        tl.store(plan + (first + start) // TM, expert.to(tl.int64), mask=start < padded)
    tl.store(plan + pair, tl.full((NP,), -1, tl.int64), mask=valid & (pair * TM >= total))
    for start in range(0, total, NP):
        tl.store(plan + pairs + start + pair, pairs.to(tl.int64), mask=start + pair < total)
    leave(PDL)


@triton.jit
def _scatter(ids, plan, cursor, pairs, shared, TOP: tl.constexpr, S: tl.constexpr, NP: tl.constexpr, PDL: tl.constexpr):
    enter(PDL)
    pair = tl.arange(0, NP)
    valid = pair < pairs
    place = tl.atomic_add(cursor + _names(ids, pair, valid, shared, TOP, S), 1, mask=valid)
    tl.store(plan + pairs + place, pair.to(tl.int64), mask=valid)
    leave(PDL)
