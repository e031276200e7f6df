"""Which blocks of a sequence are trained on: random anchors among the target's own tokens, and the labels behind them.

An anchor stands where serving has its bonus token: known, but without a target state yet. Every shape is fixed, so that
a step can be replayed as a graph; a sequence with too few candidates gets dummy blocks, which count nowhere.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Blocks(NamedTuple):
    """N blocks of g drafts per sequence."""

    anchors: Tensor
    """[B, N] positions; dummies stand at 0."""
    previous: Tensor
    """[B, N, g]: the token before each draft, the anchor first."""
    labels: Tensor
    """[B, N, g]: the token each draft should be."""
    valid: Tensor
    """[B, N, g] bool: true up to the first label that is not the target's own."""


def step_noise(seed: int, step: int, shape: torch.Size | tuple[int, ...], device: torch.device) -> Tensor:
    """What chooses a step's anchors: uniform numbers that depend on (seed, step) alone, so a resumed run agrees."""
    generator = torch.Generator(device).manual_seed(random.Random(f"anchors {seed} {step}").getrandbits(32))
    return torch.rand(shape, generator=generator, device=device)


def sample_blocks(ids: Tensor, loss_mask: Tensor, noise: Tensor, count: int, length: int) -> Blocks:
    """The `count` candidates of highest noise [B, T] in each sequence, without replacement."""
    candidate = loss_mask & F.pad(loss_mask[:, 1:], (0, 1))
    score, position = noise.masked_fill(~candidate, -1.0).topk(min(count, ids.shape[1]))
    keep = score >= 0
    return blocks_at(ids, loss_mask, torch.where(keep, position, 0), keep, length)


def blocks_at(ids: Tensor, loss_mask: Tensor, anchors: Tensor, keep: Tensor, length: int) -> Blocks:
    """Blocks at given anchors [B, N]; those without `keep` have no valid row."""
    offsets = anchors[..., None] + torch.arange(length + 1, device=ids.device)
    tokens = _at(F.pad(ids, (0, length)), offsets)
    own = _at(F.pad(loss_mask, (0, length)), offsets[..., 1:])
    valid = (own & keep[..., None]).long().cumprod(-1).bool()
    return Blocks(anchors, tokens[..., :-1], tokens[..., 1:], valid)


def target_rows(final: Tensor, blocks: Blocks) -> Tensor:
    """The target's final rows that score each label, [B, N, g, D]: row p - 1 for the label at position p."""
    length = blocks.labels.shape[-1]
    rows = blocks.anchors[..., None] + torch.arange(length, device=final.device)
    batch = torch.arange(len(final), device=final.device)[:, None, None]
    return final[batch, rows.clamp(max=final.shape[1] - 1)]


def _at(values: Tensor, positions: Tensor) -> Tensor:
    return values.gather(1, positions.flatten(1)).view_as(positions)
