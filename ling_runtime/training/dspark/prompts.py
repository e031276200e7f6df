"""What the target is asked before it goes on by itself: worked problems and a question, or a chat.

Most prompts have the five examples that tasks and load clients give; fewer teach the draft to work near a text's start.
A prompt takes at most three quarters of its row, so that every row holds text of the target's own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ling_runtime.training.documents import chat, plain, question
from ling_runtime.training.packing import packed_row
from ling_runtime.training.problems.generate import WITHHELD_SHARE, Problem, Split, draw_problem

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SHOTS = 5
FULL_SHARE = 0.5
"""Prompts with all five examples; the others have zero to four."""
CHAT_SHARE = 0.06
TURN = "<role>ASSISTANT</role>"


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """Row `index` is a function of seed, split, length and index alone."""

    tokenizer: Tokenizer
    seed: int
    length: int
    split: Split = "train"

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return self.length * 3 // 4

    def prompt(self, index: int) -> list[int]:
        """Ids of one prompt; whole problems are dropped from the front where they would fill the row."""
        rng = self._rng("prompt", index)
        if rng.random() < CHAT_SHARE:
            texts, last = [chat(self._problem(rng)) for _ in range(rng.randint(0, 2))], self._asked_in_chat(rng)
        else:
            shots = SHOTS if rng.random() < FULL_SHARE else rng.randrange(SHOTS)
            texts, last = [plain(self._problem(rng)) for _ in range(shots)], question(self._problem(rng))
        while len(ids := self._ids("".join(texts) + last)) > self.longest and texts:
            texts.pop(0)
        return ids[: self.longest]

    def text(self, index: int) -> list[int]:
        """A whole row of generated problems, none of it the target's."""
        return packed_row(self._rng("text", index), self.tokenizer, self.length)

    def _rng(self, kind: str, index: int) -> random.Random:
        return random.Random(f"dspark {self.split} {kind} {self.seed} {self.length} {index}")

    def _problem(self, rng: random.Random) -> Problem:
        return draw_problem(rng, withheld=self.split == "heldout" and rng.random() < WITHHELD_SHARE)

    def _asked_in_chat(self, rng: random.Random) -> str:
        return chat(self._problem(rng)).split(TURN)[0] + TURN

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text).ids)
