"""Near-tie canaries: prompts on which the baseline nearly chose another token, found by scanning.

The smallest numerics change shows there first. The surprise: which prompts they are depends on the weights, so they are
found anew for every baseline and handed to its candidates with the evidence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.threads import asking
from gates.probe import answer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.engines.interface import EngineClient
    from gates.evidence import Prompt

COUNT = 2
PARALLEL = 4
"""Prompts scanned at once: what a neighbour in the batch may change is which prompts are chosen, and no result."""


def scan(client: EngineClient, pool: Sequence[Prompt], *, max_new_tokens: int) -> tuple[Prompt, ...]:
    """The prompts of `pool` with the narrowest top-2 margin anywhere in their answers, narrowest first."""

    def narrowest(prompt: Prompt) -> float:
        return min(answer(client, prompt, max_new_tokens=max_new_tokens).margins, default=float("inf"))

    client.flush_cache()
    with asking(PARALLEL) as threads:
        margins = dict(zip(pool, threads.map(narrowest, pool), strict=True))
    return tuple(sorted(pool, key=margins.__getitem__)[:COUNT])
