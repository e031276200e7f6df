"""Continues prompts, a full batch at a time, and keeps every step's confidences with their outcome.

The outcome is that of the rule by which the temperature is served: greedy drafts are right when they are the target's
choice, sampled ones when they are accepted.
"""

from __future__ import annotations

import types
from collections import deque
from typing import TYPE_CHECKING, ClassVar

import torch

from ling_runtime.calibration.samples import Samples
from ling_runtime.calibration.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from ling_runtime.executor.step import StepExecutor
    from ling_runtime.speculation.interface import Reads

    Progress = Callable[[int], None]


class Recorder:
    """A schedule that verifies every row, so that no outcome is cut short, and keeps what was said last."""

    packed = False
    reads: ClassVar[Reads] = "this"
    about = types.MappingProxyType({"schedule": "recorder"})

    def lengths(self, slots: Sequence[int], confidence: Tensor) -> tuple[int, ...]:
        self.said = confidence.float().cpu()
        return (confidence.shape[1] + 1,) * len(slots)

    def forget(self, slot: int) -> None:
        pass


def collect(
    executor: StepExecutor,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    *,
    temperature: float = 0.0,
    progress: Progress = lambda _: None,
) -> Samples:
    """At least `new_tokens` tokens behind each prompt, as many prompts at once as the executor has slots.

    `progress` hears how many prompts are done.
    """
    recorder = Recorder()
    session = Session(executor, recorder, temperature)
    waiting = deque(enumerate(prompts))
    running: dict[int, tuple[int, int]] = {}  # slot -> request, tokens left
    raw, correct, request = [], [], []
    while waiting or running:
        while waiting and len(running) < executor.occupancy().slots:
            number, prompt = waiting.popleft()
            running[session.start(prompt, new_tokens)] = (number, new_tokens)
        outputs = session.step(tuple(running))
        raw.append(recorder.said)
        request += [number for number, _ in running.values()]
        for slot, output in outputs.items():
            correct.append(output.correct_drafts)
            number, left = running.pop(slot)
            if left > len(output.tokens):
                running[slot] = (number, left - len(output.tokens))
            else:
                session.end(slot)
                progress(len(prompts) - len(waiting) - len(running))
    drafts = torch.arange(executor.window - 1)
    mask = (drafts < torch.tensor(correct)[:, None]).long()
    return Samples(raw=torch.cat(raw), correct=mask, request=torch.tensor(request))
