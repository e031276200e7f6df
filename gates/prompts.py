"""The texts that gates ask: a fixed built-in set, mixed with the workload's own where it has local data.

Built-in ones are there for what data sets lack: one character, repetition, other scripts, a stop string, an early end,
a prompt longer than one prefill chunk. The surprise: few-shot problems make up most of the set, since on them drafts
are accepted, and a window of which only the first row counts would test nothing.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from itertools import chain, zip_longest
from typing import TYPE_CHECKING

from gates.evidence import Prompt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

WORKED = (
    ("Mia has 34 shells. She finds 17 more and gives 9 to her brother. How many shells does she have now?",
     "Mia has 34 + 17 = 51 shells after the walk.\nShe keeps 51 - 9 = 42 shells.\n#### 42"),
    ("A box holds 12 pencils. A teacher buys 7 boxes and hands out 50 pencils. How many pencils are left?",
     "The boxes hold 7 * 12 = 84 pencils.\nAfter handing out there are 84 - 50 = 34 pencils.\n#### 34"),
    ("Omar reads 25 pages a day for 6 days. The book has 200 pages. How many pages remain?",
     "Omar reads 25 * 6 = 150 pages.\nThere remain 200 - 150 = 50 pages.\n#### 50"),
    ("A bus carries 48 people. At a stop 19 leave and 8 enter. How many people are on the bus now?",
     "After 19 leave there are 48 - 19 = 29 people.\nWith 8 more there are 29 + 8 = 37 people.\n#### 37"),
    ("Three friends share 96 cards equally. Each then buys 5 cards. How many cards has each friend?",
     "Each gets 96 / 3 = 32 cards.\nEach then has 32 + 5 = 37 cards.\n#### 37"),
    ("Tickets cost 8 dollars. Lena buys 4 and pays with a 50 dollar note. How much change does she get?",
     "The tickets cost 4 * 8 = 32 dollars.\nShe gets 50 - 32 = 18 dollars back.\n#### 18"),
    ("A farmer picks 135 apples on Monday and 98 on Tuesday and sells 150. How many apples are left?",
     "He picks 135 + 98 = 233 apples.\nHe has 233 - 150 = 83 apples left.\n#### 83"),
    ("A tank holds 300 liters. It loses 11 liters an hour for 9 hours. How much is left?",
     "It loses 11 * 9 = 99 liters.\nThere are 300 - 99 = 201 liters left.\n#### 201"),
    ("Ben has 5 bags of 14 marbles and loses 13 marbles. How many marbles has he?",
     "Ben starts with 5 * 14 = 70 marbles.\nHe has 70 - 13 = 57 marbles.\n#### 57"),
)  # fmt: skip
N = len(WORKED)
SHOTS = 5
LONG = N - 1
"""Examples that fill more than one prefill chunk of the runtime (512 tokens)."""
FEW_SHOT = 2 * N * 6
TEXTS = (
    "a",
    "The quick brown fox jumps over the lazy dog. " * 12,
    "def add(a, b):\n    return a + b\n\n\ndef mul(a, b):\n",
    "Gr\u00f6\u00dfe, na\u00efve, \u65e5\u672c\u8a9e, \u0441\u043b\u043e\u0432\u043e, \U0001f642: ",
    '{"name": "probe", "values": [1, 2, 3, 5, 8, 13, 21], "next": ',
    "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24",
    "Once upon a time there was a lighthouse whose keeper wrote down every ship that passed.",
    "\n\n\n",
)
QUESTION_STOP = "Question"
MAX_CHARS = 4000


def gate_prompts(count: int, dataset: Path | None = None) -> tuple[Prompt, ...]:
    """`count` prompts, from `dataset` (ShareGPT form) and the built-in set by turns. Raises ValueError if too few."""
    local = () if dataset is None else tuple(from_sharegpt(dataset))
    turns = zip_longest(builtin(), local)
    prompts = [prompt for prompt in chain.from_iterable(turns) if prompt is not None]
    if count > len(prompts):
        raise ValueError(f"{count} is too many; allowed: 1 to {len(prompts)} (a workload's data add theirs)")
    return tuple(prompts[:count])


def canary_pool() -> tuple[Prompt, ...]:
    """Short candidates for the near-tie scan: a question without examples, whole and cut off in its middle.

    The model is unsure early there, most of all where it has to invent the rest of a question.
    """
    whole = [f"Question: {question}\nAnswer:" for question, _ in WORKED]
    cut = [f"Question: {question[: question.index(' ', len(question) // 2)]}" for question, _ in WORKED]
    return tuple(
        Prompt(name=f"canary-{index}", text=text, canary=True, max_new_tokens=48)
        for index, text in enumerate((*whole, *cut))
    )


def builtin() -> Iterator[Prompt]:
    """Two few-shot problems, then one other text, by turns; at the end problems only."""
    for index in range(FEW_SHOT):
        yield few_shot(index)
        if index % 2 and index // 2 < len(TEXTS):
            yield Prompt(name=f"text-{index // 2}", text=TEXTS[index // 2])


def few_shot(index: int) -> Prompt:
    """By turns a long one whose answer runs to its length, and one that ends as a task's does.

    Then the examples rotate, the question varies, and examples are left out, so that FEW_SHOT are different.
    """
    turn, task_like = divmod(index, 2)
    rotation = WORKED[turn % N :] + WORKED[: turn % N]
    if task_like:
        question, left_out = turn // N % (N - SHOTS), turn // N // (N - SHOTS)
        shots, asked = rotation[left_out:SHOTS], rotation[SHOTS + question][0]
    else:
        shots, asked = rotation[turn // N : LONG][::-1], rotation[LONG][0]
    examples = "".join(f"Question: {q}\nAnswer: {answer}\n\n" for q, answer in shots)
    return Prompt(
        name=f"few-shot-{index}",
        text=f"{examples}Question: {asked}\nAnswer:",
        ignore_eos=not task_like,
        stop=(QUESTION_STOP,) if task_like else (),
    )


def from_sharegpt(path: Path) -> Iterator[Prompt]:
    """The first turn of every conversation that has one; of a long one the end, which holds the question."""
    for index, row in enumerate(json.loads(path.read_text())):
        if turns := row.get("conversations", row.get("conversation")):
            yield Prompt(name=f"data-{index}", text=turns[0]["value"][-MAX_CHARS:])


def prompts_hash(prompts: Sequence[Prompt]) -> str:
    text = json.dumps([asdict(prompt) for prompt in prompts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
