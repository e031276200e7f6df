"""What a gate may expect of an engine: two facts, kept in one place.

The surprise: row invariance is the stronger promise. An engine whose rows do not depend on how many share the
window must give the same bytes with and without speculation; one with ordinary matmuls cannot be asked for that.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class EngineTraits:
    ours: bool
    row_invariant: bool


def engine_traits(name: str) -> EngineTraits:
    """An attached server is a stranger even if it happens to be ours: nothing is promised that we did not launch."""
    ours = name == "ling"
    return EngineTraits(ours=ours, row_invariant=ours)
