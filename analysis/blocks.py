"""The order in which two servers are asked: blocks of four slots, ABBA or its mirror, by a fair coin.

Within a block a linear drift hits both arms alike. The surprise: the coin is not for tidiness. It is the only source of
randomness that the always-valid interval (sequence.py) relies on, so a fixed order would void its guarantee.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from analysis.pairs import Arm

if TYPE_CHECKING:
    from collections.abc import Sequence

Order = tuple[Arm, Arm, Arm, Arm]
ABBA: Order = ("baseline", "candidate", "candidate", "baseline")
BAAB: Order = ("candidate", "baseline", "baseline", "candidate")


def orders(blocks: int, *, seed: int) -> tuple[Order, ...]:
    """The same for the same seed, and the first k do not depend on how many are asked for."""
    coin = random.Random(seed)
    return tuple(ABBA if coin.random() < 0.5 else BAAB for _ in range(blocks))


def prompts(names: Sequence[str], *, blocks: int, each: int) -> tuple[tuple[str, ...], ...]:
    """`each` prompts for every block, in order and from the start again where they run out.

    Enough for every block to have its own is better: then blocks are independent samples of the workload too.
    """
    assert names
    return tuple(tuple(names[(block * each + i) % len(names)] for i in range(each)) for block in range(blocks))
