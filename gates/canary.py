"""Near-tie canaries: prompts on which the baseline nearly chose another token, found by scanning.

The smallest numerics change shows there first. The surprise: which prompts they are depends on the weights, so they are
found anew for every baseline and handed to its candidates with the evidence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gates.probe import answer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.clients.generate import GenerateClient
    from gates.evidence import Prompt

COUNT = 2


def scan(client: GenerateClient, pool: Sequence[Prompt], *, max_new_tokens: int) -> tuple[Prompt, ...]:
    """The prompts of `pool` with the narrowest top-2 margin anywhere in their answers, narrowest first."""
    client.flush_cache()
    narrowest = {
        prompt.name: min(answer(client, prompt, max_new_tokens=max_new_tokens).margins, default=float("inf"))
        for prompt in pool
    }
    return tuple(sorted(pool, key=lambda prompt: narrowest[prompt.name])[:COUNT])
