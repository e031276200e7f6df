"""The statistics that decide something, each exact or with its error stated.

The surprise: McNemar's test looks only at the questions that changed. Ten lost and none gained weighs the same among 20
questions as among 1,000.
"""

from __future__ import annotations

from math import comb


def mcnemar_exact(lost: int, gained: int) -> float:
    """Two-sided exact p-value: under no change each discordant pair falls either way with probability 1/2."""
    discordant = lost + gained
    tail = sum(comb(discordant, k) for k in range(min(lost, gained) + 1))
    return min(1.0, 2 * tail / (1 << discordant))
