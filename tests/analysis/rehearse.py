"""Whole A/B runs on simulated servers, through the functions that decide on real ones."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from machines import CROWDED, CROWDED_MINIATURE, LAUNCHES_DIFFER, LING_ON_GPU, MINIATURE, ONE_GPU, TWO_CORES

from analysis.ab import compare, stop
from analysis.floor import from_runs, launches, over
from analysis.sequence import always_valid, centre, fewest_blocks, log_capital
from analysis.simulation import Effect, simulate
from gates.speed import Expectation, judge

if TYPE_CHECKING:
    from analysis.noise import Noise
    from analysis.simulation import Server, Trials
    from gates.speed import Outcome

BUDGET_S = 600.0
AA_RUNS = 5
FLOORS = 20
RESAMPLES = 199
"""Of accept length, whose interval is a point here or far from zero."""
NOW = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class Machine:
    noise: Noise
    server: Server
    prompts: int
    """To a block."""
    aa_blocks: int
    launch_blocks: int = 0
    """After so many servers are launched anew; 0: never."""
    launch_s: float = 0.0
    """What that takes."""

    @property
    def blocks(self) -> int:
        """More than fit into the budget."""
        request = self.server.prefill_s + self.server.step_s * (self.server.tokens - 1) / self.server.accept
        return math.ceil(1.1 * BUDGET_S / (4 * self.prompts * request))

    def simulate(self, effect: Effect, *, trials: int, seed: int, blocks: int | None = None) -> Trials:
        count = blocks or self.blocks
        return simulate(
            self.noise,
            self.server,
            effect,
            trials=trials,
            blocks=count,
            prompts=self.prompts,
            seed=seed,
            launch_blocks=self.launch_blocks,
        )


CPU = Machine(TWO_CORES, MINIATURE, prompts=3, aa_blocks=60)
CROWD = Machine(CROWDED, CROWDED_MINIATURE, prompts=1, aa_blocks=60)
RENEWED = Machine(LAUNCHES_DIFFER, MINIATURE, prompts=2, aa_blocks=16, launch_blocks=12, launch_s=4.0)
GPU = Machine(ONE_GPU, LING_ON_GPU, prompts=1, aa_blocks=24)


@cache
def floors(machine: Machine) -> tuple[float, ...]:
    """A/A floors as FLOORS different people would have measured them there."""
    once = replace(machine, launch_blocks=0)
    runs = once.simulate(Effect(), trials=FLOORS * AA_RUNS, seed=99, blocks=machine.aa_blocks)
    ratios = np.array([centre(run) for run in runs.contrasts("step_time")]).reshape(FLOORS, AA_RUNS)
    return tuple(from_runs(tuple(group), "here", NOW).value for group in ratios)


@dataclass(frozen=True)
class Run:
    outcome: Outcome
    blocks: int
    spent_s: float


def rehearse(machine: Machine, effect: Effect, *, trials: int, seed: int) -> list[Run]:
    """Each trial as a run of its own: a look after every block, stopped by the rules, judged at its end."""
    simulated = machine.simulate(effect, trials=trials, seed=seed)
    contrasts = simulated.contrasts("step_time")
    refused = log_capital(contrasts) >= math.log(20)
    return [
        one(machine, simulated, trial, contrasts[trial], refused[trial], floors(machine)[trial % FLOORS])
        for trial in range(trials)
    ]


def one(
    machine: Machine, trials: Trials, trial: int, contrasts: np.ndarray, refused: np.ndarray, one_launch: float
) -> Run:
    """`refused` [blocks]: zero is refused there. Only then can a look decide, so only then, and at the end, is the
    interval worked out; a run that could stop because it cannot leave the floor goes on, which is no easier."""
    each = machine.launch_blocks
    renewals = np.arange(len(contrasts)) // each if each else 0
    spent = trials.block_s[trial].cumsum() + machine.launch_s * renewals
    block_s = float(spent[0])
    for n in range(fewest_blocks(), len(contrasts) + 1):
        last = spent[n - 1] + block_s > BUDGET_S
        floor = over(one_launch, launches(n, each))
        if last or (refused[n - 1] and abs(centre(contrasts[:n])) > math.log1p(floor)):
            interval = always_valid(contrasts[:n])
            reason = stop(interval, floor=floor, margin=None, spent_s=spent[n - 1], block_s=block_s, budget_s=BUDGET_S)
            if last or reason == "decided":
                found = compare(trials.pairs(trial, n), seed=trial, resamples=RESAMPLES)
                outcome = judge("same", found.result("step_time", floor, same_arms=False), Expectation())
                return Run(outcome, n, float(spent[n - 1]))
    raise AssertionError("the budget is shorter than the trial")
