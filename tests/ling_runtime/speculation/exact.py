"""Exact probabilities in NumPy, and the test that holds counts against them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from ling_runtime.executor.interface import RowSampling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    Logits = Callable[[tuple[int, ...]], NDArray[np.float64]]

SUSPICIOUS = 1e-4
"""A correct sampler falls below it once in ten thousand tests; seeds are fixed, so a test that passes stays so."""


def sampling(**changes: float) -> RowSampling:
    return RowSampling(**({"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "seed": 1} | changes))  # type: ignore[arg-type]


def filtered(logits: NDArray[np.float64], one: RowSampling) -> NDArray[np.float64]:
    """Keep a token by its rank, by the mass before it and by its share of the best; then renormalise."""
    p = np.exp(logits / one.temperature)
    p /= p.sum()
    kept = np.zeros_like(p)
    before = 0.0
    for rank, token in enumerate(np.argsort(-p, kind="stable")):
        if (one.top_k <= 0 or rank < one.top_k) and before <= one.top_p and p[token] >= one.min_p * p.max():
            kept[token] = p[token]
        before += p[token]
    return kept / kept.sum()


def joint(logits: Logits, one: RowSampling, vocab: int, length: int) -> NDArray[np.float64]:
    """Probability of every continuation, [vocab] * length, for logits that are a function of the tokens before."""
    table = np.zeros((vocab,) * length)
    for prefix in np.ndindex(*(vocab,) * (length - 1)):
        mass = np.prod([filtered(logits(prefix[:i]), one)[token] for i, token in enumerate(prefix)])
        table[prefix] = mass * filtered(logits(prefix), one)
    return table


def count(continuations: Iterable[Sequence[int]], vocab: int, length: int) -> NDArray[np.float64]:
    counts = np.zeros((vocab,) * length)
    for tokens in continuations:
        counts[tuple(tokens[:length])] += 1
    return counts


def p_value(counts: NDArray[np.float64], probabilities: NDArray[np.float64]) -> float:
    """Of the counts if the probabilities were true; 0 when something impossible was seen."""
    possible = probabilities > 0
    if counts[~possible].any():
        return 0.0
    observed, expected = pooled(counts[possible], probabilities[possible] * counts.sum())
    return 1.0 if len(expected) == 1 else float(stats.chisquare(observed, expected).pvalue)


def pooled(
    observed: NDArray[np.float64], expected: NDArray[np.float64], least: float = 5.0
) -> tuple[list[float], list[float]]:
    """Rare cells put together until each expects `least`, which chi-square needs."""
    seen, wanted = [0.0], [0.0]
    for cell in np.argsort(expected):
        if wanted[-1] >= least:
            seen.append(0.0)
            wanted.append(0.0)
        seen[-1] += observed[cell]
        wanted[-1] += expected[cell]
    return seen, wanted
