"""Has the target write trajectories: prompts in lockstep batches, each row under a setting of its own.

Batches mix the settings, and a row's noise belongs to its seed and its number, so the same command writes the same file
whatever the batch size, as far as the device computes the same logits.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - flags are made from the types when the program runs
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import torch
from tokenizers import Tokenizer

from ling_runtime.config import ConfigError, ModelConfig
from ling_runtime.speculation.dspark.identity import checkpoint
from ling_runtime.tensor_table import tensor_specs
from ling_runtime.training.choice import Choice, Sampling
from ling_runtime.training.decode import generate
from ling_runtime.training.dspark.options import check_device
from ling_runtime.training.dspark.prompts import Prompts
from ling_runtime.training.dspark.trajectories import SETTINGS, Rows, Setting, Trajectories
from ling_runtime.weights import load

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ling_runtime.training.layers import Params


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    model: Annotated[Path, "the target's directory"]
    out: Annotated[Path, "directory for the sequences and their manifest.json"]
    rows: Annotated[int, "sequences of `length` tokens"] = 16384
    length: Annotated[int, "tokens of a sequence, prompt included"] = 1024
    long_rows: Annotated[int, "sequences of `long_length` tokens"] = 0
    long_length: Annotated[int, "tokens of a long sequence"] = 8192
    greedy_only: Annotated[bool, "all rows greedy, as for evaluation; else " + ", ".join(s.name for s in SETTINGS)] = (
        False
    )
    split: Annotated[Literal["train", "heldout"], "problems that prompts are made of"] = "train"
    seed: Annotated[int, "of prompts and samples"] = 0
    batch: Annotated[int, "sequences at a time; of long ones fewer, with as many tokens"] = 1024
    device: Annotated[Literal["cpu", "cuda"], "where the target runs"] = "cpu"
    num_threads: Annotated[int, "CPU threads"] = 1

    def __post_init__(self) -> None:
        for key in ("rows", "length", "long_length", "batch", "num_threads"):
            if getattr(self, key) < 1:
                raise ConfigError(f"{key}={getattr(self, key)}: must be at least 1")
        check_device(self.device)


def run(options: GenerateOptions) -> int:
    config = ModelConfig.from_pretrained(options.model)
    longest = max(options.length, options.long_length if options.long_rows else 0)
    if longest > config.max_position_embeddings:
        raise ConfigError(f"length={longest}: allowed up to the target's {config.max_position_embeddings}")
    torch.set_num_threads(options.num_threads)
    stored = load(options.model, tensor_specs(config))
    params = {name: value.float().to(options.device) for name, value in stored.items()}
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    settings = SETTINGS[:1] if options.greedy_only else SETTINGS
    wanted = {options.length: (options.rows, options.batch)}
    if options.long_rows:
        batch = max(options.batch * options.length // options.long_length, 1)
        wanted[options.long_length] = (options.long_rows, batch)
    rows = {}
    for length, (count, batch) in wanted.items():
        prompts = Prompts(tokenizer=tokenizer, seed=options.seed, length=length, split=options.split)
        rows[length] = write_rows(params, config, prompts, settings, rows=count, batch=batch)
        if options.device == "cuda":
            torch.cuda.empty_cache()
    target = checkpoint(options.model)
    Trajectories(target=target, seed=options.seed, split=options.split, settings=settings, rows=rows).save(options.out)
    print(f"{sum(len(one.ids) * one.length for one in rows.values())} tokens in {options.out}")
    return 0


def write_rows(
    params: Params, config: ModelConfig, prompts: Prompts, settings: Sequence[Setting], *, rows: int, batch: int
) -> Rows:
    """Rows 0 to `rows` - 1 of `prompts`, settings drawn by share, `batch` rows at a time on the parameters' device."""
    drawn = [_draw_setting(prompts, settings, index) for index in range(rows)]
    own = [index for index in range(rows) if settings[drawn[index]].sampling]
    ids = np.zeros((rows, prompts.length), np.uint16)
    first = np.ones(rows, np.int32)
    for index in set(range(rows)) - set(own):
        ids[index] = prompts.text(index)
    for part in _parts(own, batch):
        started = time.monotonic()
        given = [prompts.prompt(index) for index in part]
        chosen = [settings[drawn[index]].sampling or Sampling() for index in part]
        seeds = [_row_seed(prompts, index) for index in part]
        choice = Choice.of(chosen, seeds, params["lm_head.weight"].device)
        ids[part] = generate(params, config, given, prompts.length, choice).cpu().numpy()
        first[part] = [len(prompt) for prompt in given]
        speed = len(part) * prompts.length / (time.monotonic() - started)
        print(f"rows {part[-1] + 1}/{rows} of {prompts.length} tokens, {speed / 1e3:.1f}k tok/s", flush=True)
    return Rows(ids, first, np.array(drawn, np.uint8))


def _draw_setting(prompts: Prompts, settings: Sequence[Setting], index: int) -> int:
    rng = random.Random(f"setting {prompts.seed} {prompts.length} {index}")
    return rng.choices(range(len(settings)), [setting.share for setting in settings])[0]


def _row_seed(prompts: Prompts, index: int) -> int:
    return random.Random(f"noise {prompts.seed} {prompts.length} {index}").getrandbits(63)


def _parts(index: Sequence[int], size: int) -> Iterator[list[int]]:
    for start in range(0, len(index), size):
        yield list(index[start : start + size])
