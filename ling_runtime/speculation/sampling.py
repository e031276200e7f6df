"""The target's choice at each row: argmax, or a seeded sample from the filtered distribution.

Noise is a hash of (seed, position, token id), so a row's sample depends neither on the batch nor on the window it is
in. Filters follow SGLang: temperature first, then top-k, top-p and min-p on the sorted distribution, all measured
before any of them renormalises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ling_runtime.executor.interface import TokenLogprob

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from ling_runtime.executor.interface import RowSampling


def choose(logits: Tensor, sampling: Sequence[RowSampling], positions: Tensor) -> Tensor:
    """Tokens [R] for logits [R, V]; `positions` [R] are those of the tokens chosen. Ties go to the lowest id."""
    tokens = logits.argmax(dim=-1)
    for row, one in enumerate(sampling):
        if one.temperature > 0:
            tokens[row] = sample(log_probabilities(logits[row], one), one.seed, positions[row])
    return tokens


def log_probabilities(logits: Tensor, sampling: RowSampling) -> Tensor:
    """Log of the renormalised distribution [V] that `sampling` asks for, in fp64; -inf where filtered."""
    probabilities = torch.softmax(logits.double() / sampling.temperature, dim=-1)
    ordered, ids = probabilities.sort(descending=True, stable=True)
    keep = ordered.cumsum(0) - ordered <= sampling.top_p
    if sampling.top_k > 0:
        keep[sampling.top_k :] = False
    keep &= ordered >= sampling.min_p * ordered[0]
    keep[0] = True
    kept = torch.where(keep, ordered, 0.0)
    return torch.zeros_like(kept).scatter(0, ids, kept / kept.sum()).log()


def sample(log_p: Tensor, seed: int, position: Tensor | int) -> Tensor:
    """One draw from log_p [V] by the Gumbel-max rule, noise fixed by (seed, position)."""
    return (log_p - (-uniform(seed, position, log_p.shape[0], log_p.device).log()).log()).argmax()


def uniform(seed: int, position: Tensor | int, count: int, device: torch.device) -> Tensor:
    """fp64 numbers in (0, 1), one per token id: two rounds of the splitmix64 finaliser over (seed, position, id)."""
    ids = torch.arange(count, dtype=torch.int64, device=device)
    place = torch.as_tensor(position, dtype=torch.int64, device=device)
    state = _mix(_mix(torch.tensor(_signed(seed), device=device) + place * _GOLDEN) + ids * _GOLDEN)
    return ((state >> 11 & (1 << 53) - 1).double() + 0.5) * 2.0**-53


def token_logprob(logits: Tensor, token: int, top: int) -> TokenLogprob:
    """Log-probability of `token` under logits [V] (no temperature) and the `top` best alternatives, best first."""
    log_p = torch.log_softmax(logits, dim=-1)
    values, ids = log_p.sort(descending=True, stable=True)
    best = tuple(zip(values[:top].tolist(), ids[:top].tolist(), strict=True))
    return TokenLogprob(float(log_p[token]), token, best)


def _mix(x: Tensor) -> Tensor:
    """splitmix64's finaliser on signed 64-bit integers, which wrap as unsigned ones do; shifts are made logical."""
    x = (x ^ (x >> 30 & (1 << 34) - 1)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> 27 & (1 << 37) - 1)) * _signed(0x94D049BB133111EB)
    return x ^ (x >> 31 & (1 << 33) - 1)


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
