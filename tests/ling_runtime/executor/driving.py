"""Driving an executor as the engine does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ling_runtime.executor.interface import GREEDY, Admission, RowSampling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ling_runtime.executor.interface import Executor
    from ling_runtime.executor.step import StepExecutor


def warm(seed: int) -> RowSampling:
    return RowSampling(temperature=0.8, top_p=0.95, top_k=20, min_p=0.01, seed=seed)


@dataclass
class Stream:
    """One request's output so far."""

    slot: int
    tokens: list[int]
    logprobs: list[float] = field(default_factory=list)
    steps: int = 0


class Build(Protocol):
    def __call__(self, **settings: Any) -> StepExecutor: ...


def start(executor: StepExecutor, prompt: Sequence[int], tokens: int, sampling: RowSampling = GREEDY) -> Stream:
    slot = executor.admit(Admission(prompt, tokens, sampling, logprobs=1))
    while not (out := executor.prefill(slot)).done:
        pass
    assert out.token is not None
    assert out.logprob is not None
    return Stream(slot, [out.token], [out.logprob.logprob])


def advance(executor: StepExecutor, streams: Sequence[Stream]) -> None:
    outputs = executor.decode([s.slot for s in streams])
    for stream in streams:
        out = outputs[stream.slot]
        assert out.logprobs is not None
        stream.tokens += out.tokens
        stream.logprobs += [lp.logprob for lp in out.logprobs]
        stream.steps += 1


def generate(executor: StepExecutor, prompt: Sequence[int], tokens: int, sampling: RowSampling = GREEDY) -> Stream:
    stream = start(executor, prompt, tokens, sampling)
    while len(stream.tokens) < tokens:
        advance(executor, [stream])
    executor.release(stream.slot)
    stream.tokens, stream.logprobs = stream.tokens[:tokens], stream.logprobs[:tokens]
    return stream


def prompt_of(seed: int, length: int) -> list[int]:
    return [(seed * 31 + i * i * 7 + 3 * i) % 90 for i in range(length)]


def greedy(executor: Executor, prompts: Sequence[Sequence[int]], tokens: int, together: int) -> list[list[int]]:
    """`tokens` of each prompt, `together` of them at a time; ends of text are not minded."""
    found = []
    for first in range(0, len(prompts), together):
        streams: dict[int, list[int]] = {}
        for prompt in prompts[first : first + together]:
            slot = executor.admit(Admission(prompt, tokens))
            while not (out := executor.prefill(slot)).done:
                pass
            assert out.token is not None
            streams[slot] = [out.token]
        while waiting := [slot for slot, given in streams.items() if len(given) < tokens]:
            for slot, step in executor.decode(waiting).items():
                streams[slot] += step.tokens
        for slot, given in streams.items():
            executor.release(slot)
            found.append(given[:tokens])
    return found
