"""The serial Markov chain of a DSpark block in Triton: one launch for each draft, and one to read the last.

Every program multiplies a tile of the vocabulary's factors with that of the token before, adds its base logits and
leaves its best token. What came of the draft before is found by every program for itself, out of the best of all
tiles: a few kilobytes from the cache, where a launch between two drafts would cost more. Factors do not depend on the
draft before and are loaded ahead of the wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from ling_runtime.ops.draft_block import choose_chain
from ling_runtime.ops.registry import variant
from ling_runtime.ops.triton.launch import enter, launch, leave

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.ops.draft_block import Chained

COLUMNS, WARPS = 64, 4
"""Tokens of a program, and its warps."""


@variant("draft_chain", "triton", "rounding", "a program sums a token's bias over the rank in another order")
def choose_chain_triton(base: Tensor, anchors: Tensor, hidden: Tensor, head: Chained) -> Tensor:
    """Base logits [B, g, V] and rows [B, g, D] behind anchors [B] -> drafts [B, g], each biased by the one before.

    Heads that look at the rows, too (gated, rnn), are composed of other operators, as the reference is.
    """
    if head.factors is None:
        return choose_chain(base, anchors, hidden, head)
    batch, drafts, vocabulary = base.shape
    token_factors, factors = head.factors
    tiles, rank = triton.cdiv(vocabulary, COLUMNS), factors.shape[1]
    room = -(-tiles // 4) * 4  # pointers of all drafts are aligned alike, so that they share one compiled kernel
    best = torch.empty(drafts, batch, room, dtype=torch.float32, device=base.device)
    token = torch.empty(drafts, batch, room, dtype=torch.int32, device=base.device)
    out = torch.empty(batch, drafts, dtype=torch.int64, device=base.device)
    for k in range(drafts):
        before = max(k - 1, 0)
        _next[(tiles, batch)](
            base, anchors, token_factors, factors, best[before], token[before], best[k], token[k], out, k, drafts,
            vocabulary, tiles, room, rank, triton.next_power_of_2(rank), COLUMNS, triton.next_power_of_2(tiles), k == 0,
            **launch(), num_warps=WARPS,
        )  # fmt: skip
    _last[(batch,)](
        best[-1], token[-1], out, drafts, tiles, room, triton.next_power_of_2(tiles), **launch(), num_warps=WARPS
    )
    return out


@triton.jit
def _best(best, token, tiles, NB: tl.constexpr):
    """The best token of all tiles, the lowest id on a tie: tiles stand in the order of ids."""
    place = tl.arange(0, NB)
    value = tl.load(best + place, mask=place < tiles, other=-float("inf"))
    which = tl.load(token + place, mask=place < tiles, other=0)
    return tl.sum(tl.where(place == tl.argmax(value, axis=0, tie_break_left=True), which, 0))


@triton.jit(do_not_specialize=["k", "drafts"])
def _next(
    base, anchors, token_factors, factors, best_before, token_before, best, token, out, k, drafts, V, tiles, room,
    R: tl.constexpr, RB: tl.constexpr, BN: tl.constexpr, NB: tl.constexpr, FIRST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    tile, request = tl.program_id(0), tl.program_id(1)
    column, rank = tile * BN + tl.arange(0, BN), tl.arange(0, RB)
    inside = (column < V)[:, None] & (rank < R)[None, :]
    factor = tl.load(factors + column[:, None] * R + rank[None, :], mask=inside, other=0.0)
    enter(PDL)
    logit = tl.load(base + (request * drafts + k) * V + column, mask=column < V, other=0.0).to(tl.float32)
    if FIRST:
        previous = tl.load(anchors + request)
    else:
        previous = _best(best_before + request * room, token_before + request * room, tiles, NB).to(tl.int64)
        if tile == 0:
            tl.store(out + request * drafts + k - 1, previous)
    mine = tl.load(token_factors + previous * R + rank, mask=rank < R, other=0.0)
    bias = tl.sum(factor.to(tl.float32) * mine.to(tl.float32)[None, :], axis=1)
    # Rounded as a product's result is, then as the reference rounds before it chooses.
    logit = (logit + bias.to(factors.dtype.element_ty).to(tl.float32)).to(factors.dtype.element_ty).to(tl.float32)
    logit = tl.where(column < V, logit, -float("inf"))
    tl.store(best + request * room + tile, tl.max(logit, axis=0))
    tl.store(token + request * room + tile, tile * BN + tl.argmax(logit, axis=0, tie_break_left=True))
    leave(PDL)


@triton.jit(do_not_specialize=["drafts"])
def _last(best, token, out, drafts, tiles, room, NB: tl.constexpr, PDL: tl.constexpr):
    enter(PDL)
    request = tl.program_id(0)
    chosen = _best(best + request * room, token + request * room, tiles, NB)
    tl.store(out + request * drafts + drafts - 1, chosen.to(tl.int64))
    leave(PDL)
