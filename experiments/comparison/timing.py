"""Blocks until something is known: the loop of a comparison, which is all that happens between two looks at the data.

Servers come in as one function, time as another, so that the rules are proved on simulated servers in no time. The
surprise: the loop does not decide anything. It stops, and says why; what the answers amount to is for gates/verdict.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from analysis.ab import stop
from analysis.blocks import orders, prompts
from analysis.floor import launches, over
from analysis.pairs import contrasts, pair
from analysis.sequence import always_valid, fewest_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from analysis.ab import Stop
    from analysis.pairs import Answer, Arm, Figure, Pairs
    from experiments.comparison.requests import Request

    Slot = Callable[[Arm, int, Sequence[Request]], list[Answer]]
    """(arm, block, requests) -> their answers."""

MOST_BLOCKS = 10_000


@dataclass(frozen=True, kw_only=True)
class Rules:
    """When to stop. `blocks` fixes their number and lets no look end the run: an A/A for the floor."""

    figure: Figure = "step_time"
    floor: float = 0.0
    margin: float | None = None
    budget_s: float
    prompts: int
    seed: int
    blocks: int | None = None
    launch_blocks: int = 0
    """After so many both servers are launched anew; 0: never."""


@dataclass(frozen=True, kw_only=True)
class Timed:
    answers: tuple[Answer, ...]
    orders: tuple[str, ...]
    """ABBA or BAAB, A being the baseline, by block."""
    stop: Stop | Literal["fixed"]
    spent_s: float
    launches: tuple[int, ...]
    """Blocks on each launch of the servers."""

    @property
    def pairs(self) -> Pairs:
        return pair(self.answers)


def run(
    slot: Slot,
    requests: Sequence[Request],
    rules: Rules,
    *,
    told: Callable[[int, list[Answer]], None],
    relaunch: Callable[[], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Timed:
    """`told(block, answers)` after each block. Raises what `slot` and `relaunch` raise, PairingError."""
    each = rules.launch_blocks if relaunch else 0
    by_name: Mapping[str, Request] = {request.name: request for request in requests}
    most = rules.blocks or MOST_BLOCKS
    plan = zip(orders(most, seed=rules.seed), prompts([*by_name], blocks=most, each=rules.prompts), strict=True)
    answers: list[Answer] = []
    ran: list[str] = []
    begun = clock()
    for block, (order, names) in enumerate(plan):
        if relaunch and each and block and block % each == 0:
            relaunch()
        asked = [by_name[name] for name in names]
        fresh = [answer for arm in order for answer in slot(arm, block, asked)]
        answers += fresh
        ran.append("".join("A" if arm == "baseline" else "B" for arm in order))
        told(block, fresh)
        spent = clock() - begun
        if reason := _reason(answers, len(ran), spent, rules, each):
            return _timed(answers, ran, reason, spent, each)
    return _timed(answers, ran, "fixed", clock() - begun, each)


def _timed(
    answers: Sequence[Answer], ran: Sequence[str], stopped: Stop | Literal["fixed"], spent_s: float, each: int
) -> Timed:
    return Timed(
        answers=tuple(answers),
        orders=tuple(ran),
        stop=stopped,
        spent_s=spent_s,
        launches=launches(len(ran), each),
    )


def _reason(answers: Sequence[Answer], blocks: int, spent_s: float, rules: Rules, each: int) -> Stop | None:
    if rules.blocks:
        return None
    block_s = spent_s / blocks
    if blocks < fewest_blocks():  # nothing can be known yet
        return "budget" if spent_s + block_s > rules.budget_s else None
    most = max(blocks, int(rules.budget_s / block_s))
    return stop(
        always_valid(contrasts(pair(answers), rules.figure)),
        floor=over(rules.floor, launches(blocks, each)),
        least=over(rules.floor, launches(most, each)),
        margin=rules.margin,
        spent_s=spent_s,
        block_s=block_s,
        budget_s=rules.budget_s,
    )
