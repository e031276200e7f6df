"""Draws problems: a template, its numbers and its words, all from one seeded generator.

Numbers are drawn along the story so that most draws are legal; those that are not (an odd number to halve) are drawn
again. The same seed gives the same bytes on every machine, and a split never shares a stream with the other.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ling_runtime.training.problems import words
from ling_runtime.training.problems.move import LIMIT, MAX_FACTOR, SMALLEST, Expression, Move, apply
from ling_runtime.training.problems.templates import MOST_STEPS, Template, draw

if TYPE_CHECKING:
    from collections.abc import Iterator

Split = Literal["train", "heldout"]
WITHHELD_SHARE = 0.25
"""Part of a held-out set told by withheld templates; the rest uses training's with fresh numbers and words."""

_DRAWS = 20
_BANDS = ((4, 30), (20, 99), (100, 400), (300, 900))
_BAND_WEIGHTS = (30, 40, 20, 10)


@dataclass(frozen=True)
class Problem:
    question: str
    answer: str
    value: int
    template: Template


def generate(seed: int, num: int, split: Split = "train") -> Iterator[Problem]:
    rng = random.Random(f"{split} {seed}")
    for _ in range(num):
        yield draw_problem(rng, withheld=split == "heldout" and rng.random() < WITHHELD_SHARE)


def draw_problem(rng: random.Random, *, withheld: bool = False) -> Problem:
    while True:
        template = draw(rng, withheld=withheld)
        numbers = _draw_legal_numbers(rng, template.moves)
        if numbers is not None:
            return _tell(rng, template, numbers)


def _tell(rng: random.Random, template: Template, numbers: list[dict[str, int]]) -> Problem:
    context, people = _draw_words(rng, template)
    told, worked, ask, person = [], [], rng.choice(template.world.asks), 0
    for move, registers in zip(template.moves, numbers, strict=True):
        wording = rng.choice(move.wordings)
        names = {"P": people[person], "Q": people[person + 1]}
        told.append(wording.tell.format(**context, **names, **registers))
        for line, text in enumerate(wording.work, 1):
            worked.append(text.format(**context, **names, **registers, y=registers[f"y{line}"]))
        person += "{Q}" in wording.tell
        ask = wording.ask or ask
    question = " ".join([*told, ask.format(**context, P=people[person])])
    value = numbers[-1]["result"]
    return Problem(question, "\n".join([*worked, f"#### {value}"]), value, template)


def _draw_words(rng: random.Random, template: Template) -> tuple[dict[str, str], list[str]]:
    """Words by placeholder, and the names of all who may appear; the first is the story's own."""
    drawn = rng.sample(words.NAMES, MOST_STEPS + 2)
    people = [name for name, _ in drawn]
    context = {
        **rng.choice(template.world.lexicon),
        **words.PRONOUNS[drawn[0][1]],
        **dict(zip("ABC", people, strict=False)),
        "place": rng.choice(words.PLACES),
        "day": rng.choice(words.DAYS),
        "relative": rng.choice(words.RELATIVES),
    }
    return context, people


# ---------------------------------------------------------------------------------------------------------------------
# Numbers


def _draw_legal_numbers(rng: random.Random, moves: tuple[Move, ...]) -> list[dict[str, int]] | None:
    """None where no draw was legal: some orders cannot be told, such as growing twice and then lagging behind."""
    draws = (_draw_numbers(rng, moves) for _ in range(_DRAWS))
    return next((numbers for numbers in draws if numbers is not None), None)


def _draw_numbers(rng: random.Random, moves: tuple[Move, ...]) -> list[dict[str, int]] | None:
    """Registers of each move, or None where this draw broke a rule."""
    drawn: list[dict[str, int]] = []
    history: dict[str, int] = {}
    for index, move in enumerate(moves):
        registers = dict(history)
        if not move.expressions:
            registers["x"] = registers["result"] = _draw_size(rng, LIMIT)
        for line, expression in enumerate(move.expressions, 1):
            result = _evaluate(rng, expression, registers)
            if result is None:
                return None
            registers[f"y{line}"] = registers["result"] = result
        drawn.append(registers)
        history[f"v{index}"] = history["x"] = registers["result"]
    return drawn


def _evaluate(rng: random.Random, expression: Expression, registers: dict[str, int]) -> int | None:
    if expression.left in "nm" and expression.left not in registers:
        registers[expression.left] = _draw_left(rng, expression, registers)
    left = _read(expression.left, registers)
    if expression.right in "nm" and expression.right not in registers:
        drawn = _draw_right(rng, expression.op, left)
        if drawn is None:
            return None
        registers[expression.right] = drawn
    return apply(expression.op, left, _read(expression.right, registers))


def _read(operand: str, registers: dict[str, int]) -> int:
    return int(operand) if operand.isdigit() else registers[operand]


def _draw_left(rng: random.Random, expression: Expression, registers: dict[str, int]) -> int:
    if expression.op == "*":
        return rng.randint(SMALLEST, MAX_FACTOR)
    # A goal beyond what is there: the size to come is drawn as the difference.
    reached = registers[expression.right]
    return min(LIMIT, reached + _draw_size(rng, max(SMALLEST, LIMIT - reached)))


def _draw_right(rng: random.Random, op: str, left: int) -> int | None:
    if op == "/":
        divisors = [d for d in range(2, MAX_FACTOR + 1) if left % d == 0 and left // d >= SMALLEST]
        return rng.choice(divisors) if divisors else None
    if op == "*":
        top = LIMIT // left
        return _draw_factor(rng, left, top) if top >= SMALLEST else None
    top = LIMIT - left if op == "+" else left - SMALLEST
    return _draw_size(rng, top) if top >= SMALLEST else None


def _draw_factor(rng: random.Random, left: int, top: int) -> int:
    """A partner for `left` with one of the two at most 12; a small `left` gets partners up to 99 now and then."""
    wide = left <= MAX_FACTOR and rng.random() < 0.3
    return rng.randint(SMALLEST, min(top, 99 if wide else MAX_FACTOR))


def _draw_size(rng: random.Random, top: int) -> int:
    low, high = rng.choices(_BANDS, _BAND_WEIGHTS)[0]
    if low >= top:
        return rng.randint(SMALLEST, top)
    return rng.randint(low, min(high, top))
