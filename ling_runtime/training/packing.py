"""Endless training data: worker processes generate, tokenize and pack problems while the model trains.

Nothing is stored and no row is seen twice. Shard k depends on the seed and on k alone, so the data of a run do not
depend on the number of workers, and a resumed run continues where it stopped.
"""

from __future__ import annotations

import multiprocessing
import os
import random
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from tokenizers import Tokenizer

from ling_runtime.training.documents import chat, plain
from ling_runtime.training.problems.generate import draw_problem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Shard: TypeAlias = "np.ndarray[tuple[int, int], np.dtype[np.uint16]]"
CHAT_SHARE = 0.04


@dataclass(frozen=True, kw_only=True)
class Packing:
    tokenizer_file: Path
    seed: int
    rows: int
    """Rows of one shard, which is one training batch."""
    length: int

    def shard(self, index: int) -> Shard:
        """Batch `index`, [rows, length]; every row starts at a problem's start."""
        tokenizer = _tokenizer(str(self.tokenizer_file))
        rng = random.Random(f"pack {self.seed} {self.length} {index}")
        return np.array([packed_row(rng, tokenizer, self.length) for _ in range(self.rows)], dtype=np.uint16)


_cache: dict[str, Tokenizer] = {}


def _tokenizer(file: str) -> Tokenizer:
    if file not in _cache:
        _cache[file] = Tokenizer.from_file(file)
    return _cache[file]


def packed_row(rng: random.Random, tokenizer: Tokenizer, length: int) -> list[int]:
    """`length` tokens of problems, one after the other, all told as chats or none."""
    write = chat if rng.random() < CHAT_SHARE else plain
    ids: list[int] = []
    while len(ids) < length:
        ids += tokenizer.encode(write(draw_problem(rng))).ids
    return ids[:length]


@contextmanager
def stream(packing: Packing, first: int, workers: int) -> Iterator[Iterator[Shard]]:
    """Shards from `first` on, in order, made ahead of time by `workers` processes (0: in this one)."""
    if not workers:
        yield map(packing.shard, _count(first))
        return
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield _ahead(pool, packing, first, 4 * workers)


def _count(first: int) -> Iterator[int]:
    while True:
        yield first
        first += 1


def _ahead(pool: multiprocessing.pool.Pool, packing: Packing, first: int, depth: int) -> Iterator[Shard]:
    make = partial(pool.apply_async, packing.shard)
    pending = [make((first + k,)) for k in range(depth)]
    for index in _count(first + depth):
        shard = pending.pop(0).get()
        pending.append(make((index,)))
        yield shard
