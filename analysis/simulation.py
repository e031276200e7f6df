"""Simulated A/B runs: two servers on a noisy machine, thousands of times, with the true effect known.

The statistics are proved on these before anybody trusts them on a real server. The surprise: all trials are computed
side by side, request after request, so ten simulated minutes of a thousand experiments take about a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from analysis.pairs import Pairs, log_ratio

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from analysis.noise import Noise
    from analysis.pairs import Figure

    Floats = NDArray[np.float64]

SLOTS = 4
MIRRORED = np.array([[0, 1, 1, 0], [1, 0, 0, 1]])
"""The arm of each slot, ABBA and BAAB."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """What a request costs on a calm machine, and how far its drafts carry."""

    step_s: float
    prefill_s: float
    accept: float
    """1: no speculation."""
    accept_spread: float
    """Standard deviation of log accept length between prompts."""
    tokens: int
    """Per request, the first one from prefill."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What the candidate truly changes: factors as log-ratios."""

    step: float = 0.0
    accept: float = 0.0
    step_spread: float = 0.0
    """Standard deviation of the step effect between prompts."""


@dataclass(frozen=True, kw_only=True)
class Trials:
    """Arrays [trials, blocks, prompts of a block, arm]; each cell is the sum over its two slots."""

    decode_s: Floats
    steps: Floats
    tokens: int
    block_s: Floats
    """[trials, blocks] Wall time, prefill included."""

    def contrasts(self, figure: Figure) -> Floats:
        """[trials, blocks]"""
        above, below = self._sums(figure)
        return log_ratio(above.sum(axis=2), below.sum(axis=2))

    def pairs(self, trial: int, blocks: int) -> Pairs:
        """One trial after so many blocks, as the analysis takes a real run. Every block has prompts of its own."""
        decode, steps = (values[trial, :blocks].reshape(-1, 2).T for values in (self.decode_s, self.steps))
        ones, each = np.ones_like(decode), decode.shape[1] // blocks
        return Pairs(
            block=np.repeat(np.arange(blocks), each),
            prompt=np.arange(blocks * each),
            requests=2 * ones,
            decode_s=decode,
            steps=steps,
            tokens=2 * (self.tokens - 1) * ones,
            tpot_s=decode / (self.tokens - 1),
        )

    def _sums(self, figure: Figure) -> tuple[Floats, Floats]:
        tokens = np.full_like(self.steps, 2 * (self.tokens - 1))
        match figure:
            case "step_time":
                return self.decode_s, self.steps
            case "tpot":
                return self.decode_s / (self.tokens - 1), np.full_like(self.steps, 2.0)
            case "accept":
                return tokens, self.steps


def simulate(
    noise: Noise,
    server: Server,
    effect: Effect,
    *,
    trials: int,
    blocks: int,
    prompts: int,
    seed: int,
    launch_blocks: int = 0,
) -> Trials:
    """`prompts` to a block, each asked in all four slots; orders by a fair coin.

    Servers are launched anew after `launch_blocks`; 0: never.
    """
    generator = np.random.default_rng(seed)
    arms = MIRRORED[generator.integers(2, size=(trials, blocks))]
    steps = _steps(server, effect, generator, (trials, blocks, prompts))
    spread = effect.step_spread * generator.normal(size=(trials, blocks, 1, prompts))
    pace = server.prefill_s + (server.tokens - 1) / server.accept * server.step_s
    logs = wander(noise, generator, trials, blocks * SLOTS * prompts, pace).reshape(trials, blocks, SLOTS, prompts)
    drawn = noise.launch * generator.normal(size=(trials, -(-blocks // (launch_blocks or blocks)), 2))
    launch = drawn[:, np.arange(blocks) // (launch_blocks or blocks)]
    logs = logs + np.take_along_axis(launch, arms, axis=2)[..., None]
    logs = logs + np.where(arms[..., None] == 1, effect.step + spread, 0.0)
    asked = np.stack([np.broadcast_to(steps[..., arm][:, :, None], logs.shape) for arm in (0, 1)])
    taken = np.where(arms[..., None] == 1, asked[1], asked[0])
    seconds = taken * server.step_s * np.exp(logs)
    by_arm = [np.where(arms[..., None] == arm, seconds, 0.0).sum(axis=2) for arm in (0, 1)]
    wall = seconds.sum(axis=(2, 3)) + SLOTS * prompts * server.prefill_s
    return Trials(decode_s=np.stack(by_arm, axis=-1), steps=2 * steps, tokens=server.tokens, block_s=wall)


def wander(noise: Noise, generator: np.random.Generator, trials: int, requests: int, pace_s: float) -> Floats:
    """[trials, requests] Log factors of a machine over consecutive requests of `pace_s` seconds, launches aside."""
    slow = noise.slow * generator.normal(size=trials)
    keep = float(np.exp(-pace_s / noise.slow_s))
    begin, end = _chance(noise.burst_per_min * pace_s / 60), _chance(pace_s / max(noise.burst_s, 1e-9))
    height = np.zeros(trials)
    out = np.empty((trials, requests))
    for request in range(requests):
        slow = keep * slow + noise.slow * np.sqrt(1 - keep**2) * generator.normal(size=trials)
        calm = height == 0
        fresh = noise.burst_height * generator.exponential(size=trials) * (generator.random(trials) < begin)
        height = np.where(calm, fresh, height * (generator.random(trials) >= end))
        out[:, request] = slow + height
    minutes = (np.arange(requests) - requests / 2) * pace_s / 60
    drift = noise.drift_per_min * generator.normal(size=(trials, 1)) * minutes
    return out + drift + noise.white * generator.normal(size=out.shape)


def _steps(server: Server, effect: Effect, generator: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """[..., 2] Whole steps of each prompt under each arm: both arms of an unchanged accept length agree exactly."""
    base = np.log(server.accept) + server.accept_spread * generator.normal(size=shape)
    rounding = generator.random(shape)[..., None]
    accept = np.maximum(np.exp(np.stack([base, base + effect.accept], axis=-1)), 1.0)
    if server.accept == 1.0:
        accept = np.ones_like(accept)
    counts: Floats = np.floor((server.tokens - 1) / accept + rounding)
    return np.maximum(counts, 1.0)


def _chance(rate: float) -> float:
    """Of at least one event."""
    return 1 - float(np.exp(-rate))
