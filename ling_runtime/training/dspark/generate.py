"""Has the target write trajectories: prompts in lockstep batches, each row under a setting of its own.

Batches mix the settings, and a row's noise belongs to its seed and its number, so the same command writes the same file
whatever the batch size, as far as the device computes the same logits.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import numpy as np

from ling_runtime.training.choice import Choice, Sampling
from ling_runtime.training.decode import generate
from ling_runtime.training.dspark.trajectories import Rows, Setting

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ling_runtime.config import ModelConfig
    from ling_runtime.training.dspark.prompts import Prompts
    from ling_runtime.training.layers import Params


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
