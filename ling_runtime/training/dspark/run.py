"""The directory of a run: what was asked for, the newest checkpoint, the figures, and in the end the draft.

A checkpoint is written beside and moved into place, so a run killed at any moment can be resumed. Resuming under other
options than the run began with is refused by name, unless the option cannot change the weights.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ling_runtime.config import ConfigError
from ling_runtime.draft_weights import save_draft
from ling_runtime.training.checkpoint import restore, store
from ling_runtime.training.dspark.progress import cut

if TYPE_CHECKING:
    from pathlib import Path

    from ling_runtime.training.dspark.plan import TrainOptions
    from ling_runtime.training.dspark.trainer import Trainer


@dataclass(frozen=True)
class RunDirectory:
    path: Path

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.pt"

    @property
    def records(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def draft(self) -> Path:
        return self.path / "draft"

    @property
    def _asked(self) -> Path:
        return self.path / "run.json"

    def begin(self, options: TrainOptions) -> int:
        """Make or check the directory; gives the step to start from. ConfigError where the options do not fit it."""
        if self.checkpoint.exists() and not options.resume:
            raise ConfigError(f"out={self.path}: holds a run; give --resume to go on with it, or another directory")
        if options.resume and not self.checkpoint.exists():
            raise ConfigError(f"resume: no {self.checkpoint} there")
        if options.resume:
            self._compare(options)
        self.path.mkdir(parents=True, exist_ok=True)
        self._asked.write_text(json.dumps(options.determining, indent=2) + "\n")
        step = self.step() if options.resume else 0
        cut(self.records, step)
        return step

    def _compare(self, options: TrainOptions) -> None:
        began = json.loads(self._asked.read_text())
        for key, value in json.loads(json.dumps(options.determining)).items():
            if began.get(key) != value:
                raise ConfigError(
                    f"{key}={value}: the run in {self.path} has {began.get(key)}, which decides its weights"
                )

    def step(self) -> int:
        return int(torch.load(self.checkpoint, map_location="cpu", weights_only=True, mmap=True)["step"])

    def store(self, trainer: Trainer) -> None:
        beside = self.checkpoint.with_suffix(".new")
        store(trainer, beside)
        beside.replace(self.checkpoint)

    def restore(self, trainer: Trainer) -> None:
        restore(trainer, self.checkpoint)

    def export(self, trainer: Trainer) -> None:
        save_draft(self.draft, {n: p.detach().cpu() for n, p in trainer.params.items()}, trainer.recipe.draft)
