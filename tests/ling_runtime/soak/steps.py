"""An executor under requests that join, end, sample and are cancelled: `python -m tests.ling_runtime.soak.steps`.

2,000 steps by default, on graphs and running ahead where there is a card. Now and then everything ends, and under the
same requests each time it is looked at: slots and pages, a greedy answer, device memory, the time of a step. Prints its
figures as JSON; exit code 1 if one of them moved. Needs torch and Triton only.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import ling_runtime
from experiments import allowed
from ling_runtime.executor.build import ExecutorSettings, load_executor
from ling_runtime.executor.graph_settings import GraphSettings
from ling_runtime.executor.interface import GREEDY, Admission, RowSampling
from ling_runtime.ops.prompt import PROMPT_VARIANTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ling_runtime.executor.step import StepExecutor

SHIPPED = Path(ling_runtime.__file__).parent / "checkpoints/ling_tiny"
LENGTHS = (1, 5, 17, 70)
"""Of prompts."""
LOOKED_AT, CANARY = 24, 16
"""Steps that are timed at each reading, and tokens of the answer that is compared."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    drift: float = 0.05
    growth_mb: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Reading:
    """At rest after `step` steps; the time and the answer under the same requests every time."""

    step: int
    step_ms: float
    allocated_mb: float
    lost_slots: int
    lost_pages: int
    answer: tuple[int, ...]


@dataclass
class Guest:
    wanted: int
    tokens: int = 1


@dataclass
class Soak:
    """One executor, its running requests by slot, and what was done with them."""

    executor: StepExecutor
    seed: int = 0
    arrivals: float = 0.2
    """Of a request before a step."""
    running: dict[int, Guest] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("greedy", "sampled", "ended", "cancelled"), 0))

    def __post_init__(self) -> None:
        self._choose = random.Random(self.seed)

    def step(self) -> None:
        """Perhaps a request more, perhaps one fewer, and one decode step of those that run."""
        choose = self._choose
        if not self.running or choose.random() < self.arrivals:
            self._join()
        if len(self.running) > 1 and choose.random() < 0.03:
            self._leave(choose.choice(sorted(self.running)), "cancelled")
        for slot, out in self.executor.decode(tuple(self.running)).items():
            self.running[slot].tokens += len(out.tokens)
        for slot in [slot for slot, guest in self.running.items() if guest.tokens >= guest.wanted]:
            self._leave(slot, "ended")

    def end(self) -> None:
        for slot in sorted(self.running):
            self._leave(slot, "cancelled")

    def _join(self) -> None:
        choose, wanted = self._choose, self._choose.choice((1, 6, 20, 60))
        length = choose.choice(LENGTHS)
        if not self.executor.can_admit(length, wanted):
            return
        sampled = choose.random() < 0.12
        sampling = (
            dataclasses.replace(GREEDY, temperature=0.8, top_p=0.9, seed=choose.randrange(99)) if sampled else GREEDY
        )
        logprobs = 2 if choose.random() < 0.05 else None
        self.running[begin(self.executor, prompt(choose.randrange(99), length), wanted, sampling, logprobs)] = Guest(
            wanted
        )
        self.done["sampled" if sampled else "greedy"] += 1

    def _leave(self, slot: int, how: str) -> None:
        self.executor.release(slot)
        del self.running[slot]
        self.done[how] += 1


def prompt(seed: int, length: int) -> list[int]:
    return [(seed * 31 + i * i * 7 + 3 * i) % 90 for i in range(length)]


def begin(
    executor: StepExecutor, tokens: list[int], wanted: int, sampling: RowSampling = GREEDY, logprobs: int | None = None
) -> int:
    slot = executor.admit(Admission(tokens, wanted, sampling, logprobs=logprobs))
    while not executor.prefill(slot).done:
        pass
    return slot


def synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def warm(executor: StepExecutor, most: int) -> None:
    """Every number of requests twice, since a set of graphs is recorded for each and stays; then one that samples,
    behind the longest prompt, for which a library may take its working memory.
    """
    slots: list[int] = []
    for _ in range(most):
        slots.append(begin(executor, prompt(len(slots), 9), 8))
        for _ in range(2):
            executor.decode(tuple(slots))
    for slot in slots:
        executor.release(slot)
    sampled = begin(executor, prompt(most, LENGTHS[-1]), 8, dataclasses.replace(GREEDY, temperature=0.8), logprobs=2)
    for _ in range(2):
        executor.decode((sampled,))
    executor.release(sampled)


def read(executor: StepExecutor, step: int, most: int) -> Reading:
    """To be called when nothing runs."""
    held = executor.occupancy()
    slots = [begin(executor, prompt(number, 12), 8 * LOOKED_AT) for number in range(most)]
    synchronise()
    begun = time.perf_counter()
    for _ in range(LOOKED_AT):
        executor.decode(tuple(slots))
    synchronise()
    step_ms = (time.perf_counter() - begun) * 1e3 / LOOKED_AT
    for slot in slots:
        executor.release(slot)
    slot, answer = begin(executor, prompt(7, 20), CANARY), list[int]()
    while len(answer) < CANARY:
        answer += executor.decode((slot,)).get(slot, _NOTHING).tokens
    executor.release(slot)
    synchronise()
    return Reading(
        step=step,
        step_ms=step_ms,
        allocated_mb=torch.cuda.memory_allocated() / 2**20 if torch.cuda.is_available() else 0.0,
        lost_slots=held.slots - held.free_slots,
        lost_pages=held.pages - held.free_pages,
        answer=tuple(answer[:CANARY]),
    )


@dataclass(frozen=True)
class Nothing:
    tokens: tuple[int, ...] = ()


_NOTHING = Nothing()


def soak(executor: StepExecutor, *, steps: int, readings: int, most: int, limits: Limits) -> dict[str, Any]:
    """The report of `steps` steps, with what is wrong under "problems"."""
    warm(executor, most)
    one = Soak(executor)
    taken = [read(executor, 0, most)]
    for number in range(1, steps + 1):
        one.step()
        if number % max(1, steps // readings) == 0:
            one.end()
            taken.append(read(executor, number, most))
    return {
        "steps": steps,
        "requests": one.done,
        "step_ms": round(statistics.median(x.step_ms for x in taken), 4),
        "step_drift": round(drift([x.step_ms for x in taken]), 4),
        "allocated_mb": round(taken[-1].allocated_mb, 2),
        "problems": problems(taken, limits),
    }


def drift(values: Sequence[float]) -> float:
    """The fastest of the last third over that of the first, minus one: foreign load only ever adds."""
    third = max(1, len(values) // 3)
    return min(values[-third:]) / min(values[:third]) - 1


def problems(taken: Sequence[Reading], limits: Limits) -> list[str]:
    found = []
    for one in taken:
        if one.lost_slots or one.lost_pages:
            found.append(f"after {one.step} steps not given back: {one.lost_slots} slots, {one.lost_pages} pages")
        if one.answer != taken[0].answer:
            found.append(f"after {one.step} steps another greedy answer")
    grown, slower = taken[-1].allocated_mb - taken[0].allocated_mb, drift([one.step_ms for one in taken])
    if grown > limits.growth_mb:
        found.append(f"device memory grew by {grown:.1f} MB; allowed: {limits.growth_mb}")
    if slower > limits.drift:
        found.append(f"steps became {slower:.1%} slower; allowed: {limits.drift:.0%}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=allowed.whole(1), default=2000)
    parser.add_argument("--readings", type=allowed.whole(1), default=12)
    parser.add_argument("--requests", type=allowed.whole(1), default=4)
    parser.add_argument("--drafts", type=allowed.whole(0), default=3)
    options = parser.parse_args()
    settings: dict[str, Any] = {"num_steps": options.drafts, "max_requests": options.requests, "context_length": 512}
    if torch.cuda.is_available():
        from ling_runtime.executor.graphs import best_here  # noqa: PLC0415 - it imports Triton

        settings |= {"device": "cuda", "dtype": "bfloat16", "kernels": best_here() | PROMPT_VARIANTS}
        settings |= {"graphs": GraphSettings(overlap=True)}
    executor = load_executor(str(SHIPPED), ExecutorSettings(**settings))
    result = soak(executor, steps=options.steps, readings=options.readings, most=options.requests, limits=Limits())
    print(json.dumps(result, indent=1))
    return 1 if result["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
