"""What a run tells while it runs: a line for people, and a JSON line for whoever draws curves.

A resumed run cuts the records back to its checkpoint, so the file reads as if nothing had ever stopped.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ling_runtime.training.dspark.board import Board, Reading
    from ling_runtime.training.dspark.parallel import Ranks
    from ling_runtime.training.dspark.trainer import Progress, Trainer


def figures(progress: Progress, ranks: Ranks) -> dict[str, Any]:
    """Losses and metrics of all ranks as plain numbers, lists where a figure has one per row; every rank must ask.

    A rank's losses are its part of the whole; metrics are means over its own sequences.
    """
    named = [
        (group, name, value) for group, part in progress._asdict().items() for name, value in part._asdict().items()
    ]
    everyone = ranks.summed(torch.cat([value.reshape(-1).float() for _, _, value in named])).cpu()
    read: dict[str, Any] = {group: {} for group in progress._fields}
    for (group, name, value), total in zip(named, everyone.split([v.numel() for _, _, v in named]), strict=True):
        read[group][name] = (total if group == "losses" else total / ranks.size).view(value.shape).tolist()
    return read


def cut(records: Path, step: int) -> None:
    """Drop what was recorded after `step`."""
    if records.exists():
        kept = [line for line in records.read_text().splitlines() if json.loads(line)["step"] <= step]
        records.write_text("".join(f"{line}\n" for line in kept))


@dataclass
class Reporter:
    """Reads a step's figures at every `every`-th step alone, because reading waits for the GPU."""

    trainer: Trainer
    board: Board
    records: Path
    every: int
    say: Callable[[str], None]
    _before: Reading = field(init=False)
    _started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._before = self.board.read()

    def __call__(self, progress: Progress) -> None:
        step, steps = self.trainer.step, self.trainer.recipe.schedule.steps
        if step % self.every and step != steps:
            return
        now = self.board.read()
        pace, self._before = now.since(self._before), now
        read = figures(progress, self.trainer.ranks)
        total = read["losses"]["total"]
        if not math.isfinite(total):
            raise FloatingPointError(f"step {step}: the loss is {total}")
        if self.trainer.ranks.rank:
            return
        record = {"step": step, **read, "pace": asdict(pace)}
        with self.records.open("a") as file:
            file.write(json.dumps(record) + "\n")
        metrics = read["metrics"]
        line = f"step {step}/{steps} loss {total:.4f} tau {metrics['tau']:.2f} greedy {metrics['greedy_tau']:.2f}"
        self.say(f"{line}; {pace}; {time.monotonic() - self._started:.0f} s")
