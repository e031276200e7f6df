"""Accepting a chain of sampled drafts so that what is emitted follows the target exactly.

`chain_rejection` decides draft by draft and stops at the first refusal; `block_verification` (arXiv 2403.10444,
algorithm 2) weighs the chain as a whole and accepts at least as much on average. The surprise: a request may be
verified for fewer drafts than were made. Its chain then simply ends earlier, with the token after it drawn from the
target alone, so a full window with a cap and a window that never had the other rows give the same tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

LEAST_MASS = 1e-8
"""A residual below this is rounding: the target's distribution is sampled instead."""


@dataclass(frozen=True)
class Verified:
    """`tokens` [B, W] hold the accepted drafts and then one more; `counts` [B] >= 1 says how many of them are real."""

    counts: Tensor
    tokens: Tensor


@dataclass(frozen=True, kw_only=True)
class Chain:
    """What B requests drafted and what the target thinks of it; g drafts, W = g + 1 rows.

    `p` [B, W, V] is the target's distribution at each row, after temperature and filters, and `q` [B, g, V] the one
    each draft was really drawn from. `lengths` [B] in 1..W are the rows verified: only `lengths - 1` drafts are
    considered, and rows of `p` past them are not read. Uniform numbers belong to one step and are used once.
    """

    p: Tensor
    q: Tensor
    drafts: Tensor  # [B, g]
    uniforms: Tensor  # [B, g]
    bonus_uniform: Tensor  # [B]
    lengths: Tensor

    @property
    def considered(self) -> Tensor:
        """[B, g] where there is a draft to decide about."""
        return torch.arange(self.drafts.shape[1], device=self.drafts.device) < (self.lengths - 1).unsqueeze(1)

    def of_drafts(self) -> tuple[Tensor, Tensor]:
        """(p, q) [B, g] at the drafts; q is 0 where it is no probability."""
        index = self.drafts.unsqueeze(2)
        p = self.p[:, :-1].gather(2, index).squeeze(2)
        q = self.q.double().gather(2, index).squeeze(2)
        return p, torch.where((q > 0) & (q <= 1), q, 0.0)


def chain_rejection(chain: Chain) -> Verified:
    """Accept draft d while u q(d) < p(d); at the first refusal draw from max(p - q, 0)."""
    p, q = chain.of_drafts()
    passes = (q > 0) & (chain.uniforms * q < p) & chain.considered
    correct = passes.long().cumprod(dim=1).sum(dim=1)
    return _completed(chain, correct, torch.ones_like(chain.bonus_uniform))


def block_verification(chain: Chain) -> Verified:
    """Accept the longest prefix i with u_i < r_i, where h_i = min(h_{i-1} p/q, 1) is what the prefix is worth.

    A prefix that is not the whole chain counts r_i = S / (S + 1 - h_i), S the mass of the residual max(h_i p - q, 0)
    from which the next token then comes.
    """
    worth = _worth(chain)
    passes = (chain.uniforms < _thresholds(chain, worth[:, 1:])) & chain.considered
    place = torch.arange(1, passes.shape[1] + 1, device=passes.device)
    correct = torch.where(passes, place, 0).amax(dim=1)
    return _completed(chain, correct, worth.gather(1, correct.unsqueeze(1)).squeeze(1))


def _worth(chain: Chain) -> Tensor:
    """h [B, g + 1], from h_0 = 1."""
    p, q = chain.of_drafts()
    ratios = torch.where(q > 0, p / q, 0.0)
    worth = [torch.ones_like(chain.bonus_uniform)]
    for ratio in ratios.unbind(1):
        worth.append((worth[-1] * ratio).clamp(max=1.0))
    return torch.stack(worth, dim=1)


def _thresholds(chain: Chain, worth: Tensor) -> Tensor:
    """r [B, g] for h [B, g]; that of a chain's last draft is h itself."""
    inner = worth[:, :-1]
    mass = _total((inner.unsqueeze(2) * chain.p[:, 1:-1] - _valid(chain.q[:, 1:])).clamp(min=0.0))
    undecided = (inner > 0) & (inner < 1) & chain.considered[:, 1:]
    return torch.cat([torch.where(undecided, mass / (mass + 1.0 - inner), inner), worth[:, -1:]], dim=1)


def _completed(chain: Chain, correct: Tensor, worth: Tensor) -> Verified:
    """The accepted drafts and the token after them, from the residual `worth` p - q unless the chain ended there."""
    request = torch.arange(correct.shape[0], device=correct.device)
    target = chain.p[request, correct]
    refused = correct < chain.lengths - 1
    drafted = _valid(chain.q[request, correct.clamp(max=chain.q.shape[1] - 1)])
    residual = (worth.unsqueeze(1) * target - drafted).clamp(min=0.0)
    usable = refused & (_total(residual) > LEAST_MASS)
    bonus = _inverse(torch.where(usable.unsqueeze(1), residual, target), chain.bonus_uniform)
    tokens = torch.cat([chain.drafts, bonus.unsqueeze(1)], dim=1)
    return Verified(correct + 1, tokens.scatter(1, correct.unsqueeze(1), bonus.unsqueeze(1)))


def _inverse(mass: Tensor, uniform: Tensor) -> Tensor:
    """First index [B] at which the running sum of mass [B, V] exceeds uniform * total; never one without mass."""
    running = mass.cumsum(dim=-1)
    total = running[:, -1]
    below = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(running, below.unsqueeze(1), right=True).squeeze(1)


def _total(mass: Tensor) -> Tensor:
    """Sum over the last dimension in one fixed order, whatever the batch."""
    return mass.cumsum(dim=-1)[..., -1]


def _valid(q: Tensor) -> Tensor:
    """Draft probabilities in fp64, 0 where they are none."""
    wide = q.double()
    return torch.where((wide >= 0) & (wide <= 1), wide, 0.0)
