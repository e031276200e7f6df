"""The target's choice at each row: argmax, or a seeded sample from the filtered distribution.

Noise is a hash of (seed, position, token id), so a row's sample depends neither on the batch nor on the window it is
in. Filters follow SGLang: temperature first, then top-k, top-p and min-p on the sorted distribution, all measured
before any of them renormalises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ling_runtime.executor.interface import TokenLogprob
from ling_runtime.speculation.noise import seed_tensor, uniform

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from ling_runtime.executor.interface import RowSampling


def choose(logits: Tensor, sampling: Sequence[RowSampling], positions: Tensor) -> Tensor:
    """Tokens [R] for logits [R, V]; `positions` [R] are those of the tokens chosen. Ties go to the lowest id."""
    tokens = logits.argmax(dim=-1)
    warm = [row for row, one in enumerate(sampling) if one.temperature > 0]
    if warm:
        rows = torch.tensor(warm, device=logits.device)
        wishes = [sampling[row] for row in warm]
        seeds = seed_tensor((one.seed for one in wishes), logits.device)
        tokens[rows] = sample(log_probabilities(logits[rows], wishes), uniform(seeds, positions[rows], logits.shape[1]))
    return tokens


def log_probabilities(logits: Tensor, sampling: Sequence[RowSampling]) -> Tensor:
    """Logs of `probabilities`; -inf where filtered."""
    return probabilities(logits, sampling).log()


def probabilities(logits: Tensor, sampling: Sequence[RowSampling]) -> Tensor:
    """The renormalised distributions [R, V] that `sampling` asks for at each row of logits [R, V], in fp64.

    A greedy row has all of its mass on the argmax.
    """
    greedy = _column(sampling, "temperature", logits) <= 0
    temperature = torch.where(greedy, 1.0, _column(sampling, "temperature", logits))
    ordered, ids = torch.softmax(logits.double() / temperature, dim=-1).sort(dim=-1, descending=True, stable=True)
    top_k = _column(sampling, "top_k", logits)
    rank = torch.arange(logits.shape[1], device=logits.device)
    keep = ordered.cumsum(-1) - ordered <= _column(sampling, "top_p", logits)
    keep &= (rank < top_k) | (top_k <= 0)
    keep &= ordered >= _column(sampling, "min_p", logits) * ordered[:, :1]
    keep &= ~greedy
    keep[:, 0] = True
    kept = torch.where(keep, ordered, 0.0)
    return torch.zeros_like(kept).scatter(1, ids, kept / kept.sum(-1, keepdim=True))


def sample(log_p: Tensor, noise: Tensor) -> Tensor:
    """One draw [R] from each row of log_p [R, V] by the Gumbel-max rule; `noise` [R, V] is uniform."""
    return (log_p - (-noise.log()).log()).argmax(dim=-1)


def token_logprob(logits: Tensor, token: int, top: int) -> TokenLogprob:
    """Log-probability of `token` under logits [V] (no temperature) and the `top` best alternatives, best first."""
    log_p = torch.log_softmax(logits, dim=-1)
    values, ids = log_p.sort(descending=True, stable=True)
    best = tuple(zip(values[:top].tolist(), ids[:top].tolist(), strict=True))
    return TokenLogprob(float(log_p[token]), token, best)


def _column(sampling: Sequence[RowSampling], key: str, like: Tensor) -> Tensor:
    """[R, 1] values of one wish, fp64."""
    values = [float(getattr(one, key)) for one in sampling]
    return torch.tensor(values, dtype=torch.float64, device=like.device).unsqueeze(1)
