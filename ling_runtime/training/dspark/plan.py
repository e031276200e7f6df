"""A training run as its flags say it, and what follows from them: recipe, stream of sequences, place of each half.

Both halves of every pair derive these for themselves from the same flags, so nothing but states travels between them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import torch

from ling_runtime.config import ConfigError, ModelConfig
from ling_runtime.executor.build import DTYPES
from ling_runtime.speculation.dspark.identity import checkpoint
from ling_runtime.training.dspark.channel import batch_bytes
from ling_runtime.training.dspark.options import check_device
from ling_runtime.training.dspark.recipe import PRESETS, Recipe, recipe
from ling_runtime.training.dspark.stream import Stream
from ling_runtime.training.dspark.trajectories import Trajectories
from ling_runtime.training.schedule import Schedule

FREE_TO_CHANGE = ("out", "halves", "device", "depth", "log_every", "checkpoint_every", "resume", "seconds")
"""Options that a resumed run may change: they do not enter the weights."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    model: Annotated[Path, "the target's directory"]
    trajectories: Annotated[Path, "directory written by `generate` with the same target"]
    out: Annotated[Path, "directory of the run: draft/, checkpoint.pt, metrics.jsonl, logs/"]
    preset: Annotated[str, f"what differs from the plain recipe: {', '.join(PRESETS)}"] = "plain"
    block_size: Annotated[int, "drafts of one block"] = 8
    steps: Annotated[int, "updates in all"] = 3000
    lr: Annotated[float, "learning rate at its peak"] = 2e-3
    rise: Annotated[int, "steps until the peak"] = 100
    fall: Annotated[float, "share of the steps over which it falls to zero"] = 0.7
    rows: Annotated[int, "sequences of one pair and step"] = 32
    anchors: Annotated[int, "blocks trained on in each sequence"] = 64
    length: Annotated[int, "tokens of a sequence, one of the lengths that were generated"] = 1024
    long_every: Annotated[int, "every how many steps sequences are long ones; 0 is never"] = 0
    long_length: Annotated[int, "tokens of a long sequence"] = 8192
    shares: Annotated[str | None, "other shares than those generated, such as greedy=0.7,wide=0.3"] = None
    seed: Annotated[int, "of the first weights, the anchors and the order of sequences"] = 0
    halves: Annotated[Literal["auto", "processes", "threads"], "threads share one device, auto takes them there"] = (
        "auto"
    )
    device: Annotated[Literal["cpu", "cuda"], "where both halves run"] = "cpu"
    pairs: Annotated[int, "target processes, and trainers; on cuda each has a device, targets the first ones"] = 1
    depth: Annotated[int, "batches that may wait between the halves of a pair"] = 3
    target_dtype: Annotated[Literal["float32", "bfloat16"], "precision of the target's forwards"] = "float32"
    num_threads: Annotated[int, "CPU threads of each half"] = 1
    log_every: Annotated[int, "steps between progress lines"] = 50
    checkpoint_every: Annotated[int, "steps between checkpoints; one is always written at the end"] = 500
    seconds: Annotated[float | None, "stop after so much time, as a signal would"] = None
    resume: Annotated[bool, "go on from the checkpoint in `out`"] = False

    def __post_init__(self) -> None:
        for key in (
            "block_size",
            "steps",
            "rise",
            "rows",
            "anchors",
            "pairs",
            "depth",
            "num_threads",
            "log_every",
            "checkpoint_every",
        ):
            if getattr(self, key) < 1:
                raise ConfigError(f"{key}={getattr(self, key)}: must be at least 1")
        check_device(self.device)
        if self.anchors > self.length:
            raise ConfigError(f"anchors={self.anchors}: allowed up to length={self.length}")
        if self.preset not in PRESETS:
            raise ConfigError(f"preset={self.preset}: allowed: {', '.join(PRESETS)}")
        if self.halves == "threads" and self.pairs > 1:
            raise ConfigError(f"pairs={self.pairs}: halves=threads share one device and are one pair")

    @property
    def in_threads(self) -> bool:
        """One GPU takes both halves as threads; CPUs and several GPUs take processes."""
        alone = self.device == "cuda" and self.pairs == 1 and torch.cuda.device_count() == 1
        return self.halves == "threads" or (self.halves == "auto" and alone)

    @property
    def determining(self) -> dict[str, Any]:
        """What decides the weights, as JSON."""
        return {k: str(v) if isinstance(v, Path) else v for k, v in asdict(self).items() if k not in FREE_TO_CHANGE}


@dataclass(frozen=True)
class Plan:
    options: TrainOptions

    @cached_property
    def target(self) -> ModelConfig:
        return ModelConfig.from_pretrained(self.options.model)

    @cached_property
    def recipe(self) -> Recipe:
        options = self.options
        schedule = Schedule(options.lr, options.steps, options.rise, options.fall)
        return recipe(options.preset, self.target, options.block_size, schedule, options.seed, options.anchors)

    @cached_property
    def stream(self) -> Stream:
        options = self.options
        trajectories = Trajectories.open(options.trajectories, target=checkpoint(options.model))
        if options.shares is not None:
            trajectories = trajectories.shared(parse_shares(options.shares))
        stream = Stream(
            trajectories=trajectories,
            seed=options.seed,
            ranks=options.pairs,
            rows=options.rows,
            length=options.length,
            long_every=options.long_every,
            long_length=options.long_length,
        )
        for step in {0, max(options.long_every - 1, 0)}:
            stream.part(step, 0)  # a length or a share that is not there is found before anything starts
        return stream

    @property
    def kept(self) -> torch.dtype:
        """Precision in which states travel."""
        return torch.bfloat16 if self.options.device == "cuda" else torch.float32

    @property
    def target_dtype(self) -> torch.dtype:
        return DTYPES[self.options.target_dtype]

    @property
    def slot_bytes(self) -> int:
        states = (len(self.recipe.draft.target_layer_ids) + 1) * self.target.hidden_size
        return batch_bytes(self.stream.tokens, states, self.kept)

    def devices(self, pair: int) -> tuple[torch.device, torch.device]:
        """Of the target and of the draft."""
        options = self.options
        if options.device == "cpu":
            return torch.device("cpu"), torch.device("cpu")
        found = torch.cuda.device_count()
        if options.in_threads or (options.pairs == 1 and found == 1):
            return torch.device("cuda:0"), torch.device("cuda:0")
        if 2 * options.pairs > found:
            raise ConfigError(f"pairs={options.pairs}: needs {2 * options.pairs} CUDA devices, {found} are here")
        return torch.device(f"cuda:{pair}"), torch.device(f"cuda:{options.pairs + pair}")


def parse_shares(text: str) -> dict[str, float]:
    """`greedy=0.7,wide=0.3` as a mapping."""
    try:
        return {name: float(share) for name, share in (part.split("=") for part in text.split(","))}
    except ValueError as error:
        raise ConfigError(f"shares={text}: expected NAME=SHARE,NAME=SHARE with numbers") from error
