"""Two simulated servers on a noisy machine, asked slot by slot as the real ones are, on a clock of their own."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from analysis.noise import Noise
from analysis.pairs import Answer
from analysis.simulation import Server, wander
from experiments.comparison.requests import Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from analysis.pairs import Arm

QUIET = Noise(
    white=0.005,
    slow=0.005,
    slow_s=1.5,
    drift_per_min=0.01,
    launch=0.001,
    burst_per_min=0.5,
    burst_s=2,
    burst_height=0.1,
)
MOST = 4_000
"""Answers that a server has: some times what the longest test asks for, and each costs 10 us to draw."""
SERVER = Server(step_s=0.0095, prefill_s=0.16, accept=3.75, accept_spread=0.0, tokens=64)
REQUESTS = tuple(Request(name=f"prompt-{k}", text=f"text {k}") for k in range(8))


class Servers:
    """`step` and `accept`: what the candidate truly changes, as log-ratios."""

    def __init__(self, noise: Noise, *, seed: int, step: float = 0.0, accept: float = 0.0) -> None:
        self._step, self._accept = step, accept
        generator = np.random.default_rng(seed)
        pace = SERVER.prefill_s + (SERVER.tokens - 1) / SERVER.accept * SERVER.step_s
        self._moods = iter(wander(noise, generator, 1, MOST, pace)[0])
        self._noise, self._generator = noise, generator
        self.launches = 0
        self.relaunch()
        self.asked: list[tuple[Arm, int, tuple[str, ...]]] = []
        self.now = 0.0

    def relaunch(self) -> None:
        drawn = self._noise.launch * self._generator.normal(size=2)
        self._launch: dict[Arm, float] = {"baseline": drawn[0], "candidate": drawn[1]}
        self.launches += 1

    def clock(self) -> float:
        return self.now

    def slot(self, arm: Arm, block: int, requests: Sequence[Request]) -> list[Answer]:
        self.asked.append((arm, block, tuple(request.name for request in requests)))
        return [self._answer(arm, block, request.name) for request in requests]

    def _answer(self, arm: Arm, block: int, prompt: str) -> Answer:
        changed = arm == "candidate"
        steps = round((SERVER.tokens - 1) / (SERVER.accept * math.exp(self._accept * changed)))
        decode_s = steps * SERVER.step_s * math.exp(next(self._moods) + self._launch[arm] + self._step * changed)
        self.now += SERVER.prefill_s + decode_s
        return Answer(arm=arm, block=block, prompt=prompt, tokens=SERVER.tokens, steps=steps, decode_s=decode_s)
