"""From the target's logits over a window to the tokens that each request commits.

One rule per request: drafts without randomness are accepted by being the target's own choice, sampled drafts by exact
rejection. The surprise: a greedy request keeps the first rule beside sampled neighbours, so its tokens do not depend
on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ling_runtime.speculation.acceptance import correct_drafts
from ling_runtime.speculation.dspark.rejection import Chain, Verified, block_verification, chain_rejection
from ling_runtime.speculation.noise import Stream, seed_tensor, uniform
from ling_runtime.speculation.sampling import choose, probabilities

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from ling_runtime.executor.interface import RowSampling
    from ling_runtime.speculation.interface import Proposal

Rule = Callable[[Chain], Verified]

RULES: dict[str, Rule] = {"classic": chain_rejection, "block": block_verification}
"""Of sampled drafts."""


def verify(
    logits: Tensor, proposal: Proposal, sampling: Sequence[RowSampling], starts: Tensor, lengths: Tensor, rule: Rule
) -> Verified:
    """Accept drafts under logits [B, W, V] of the rows from positions `starts` [B] on.

    `lengths` [B] in 1..W are the rows verified of each request; those past them are not read.
    """
    warm = [i for i, one in enumerate(sampling) if one.temperature > 0] if proposal.probabilities is not None else []
    verified = _by_choice(logits, proposal.drafts, _all_greedy(sampling, warm), starts, lengths)
    if not warm:
        return verified
    index = torch.tensor(warm, device=logits.device)
    sampled = rule(_chain(logits[index], proposal, index, [sampling[i] for i in warm], starts[index], lengths[index]))
    return Verified(
        verified.counts.index_copy(0, index, sampled.counts), verified.tokens.index_copy(0, index, sampled.tokens)
    )


def _by_choice(
    logits: Tensor, drafts: Tensor, sampling: Sequence[RowSampling], starts: Tensor, lengths: Tensor
) -> Verified:
    window = logits.shape[1]
    positions = starts[:, None] + torch.arange(1, window + 1, device=logits.device)
    rows = [one for one in sampling for _ in range(window)]
    choices = choose(logits.flatten(0, 1), rows, positions.flatten()).view(-1, window)
    return Verified(torch.minimum(correct_drafts(drafts, choices) + 1, lengths), choices)


def _chain(
    logits: Tensor,
    proposal: Proposal,
    index: Tensor,
    sampling: Sequence[RowSampling],
    starts: Tensor,
    lengths: Tensor,
) -> Chain:
    assert proposal.probabilities is not None
    batch, window, _ = logits.shape
    rows = [one for one in sampling for _ in range(window)]
    seeds = seed_tensor((one.seed for one in sampling), logits.device)
    return Chain(
        p=probabilities(logits.flatten(0, 1), rows).view(batch, window, -1),
        q=proposal.probabilities[index],
        drafts=proposal.drafts[index],
        uniforms=uniform(seeds, starts, window - 1, Stream.ACCEPT),
        bonus_uniform=uniform(seeds, starts, 1, Stream.BONUS).squeeze(1),
        lengths=lengths,
    )


def _all_greedy(sampling: Sequence[RowSampling], settled: Sequence[int]) -> list[RowSampling]:
    """Sampling with the `settled` requests made greedy, whose choices another rule will replace."""
    return [replace(one, temperature=0.0) if i in settled else one for i, one in enumerate(sampling)]
