"""Draws problems: a template, its numbers and its words, all from one seeded generator.

Numbers are drawn along the story so that most draws are legal; those that are not (an odd number to halve) start the
story over. The same seed gives the same bytes on every machine, and a split never shares a stream with the other.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ling_runtime.training.problems import words
from ling_runtime.training.problems.move import LIMIT, MAX_FACTOR, SMALLEST, Expression, Move, apply
from ling_runtime.training.problems.templates import SEEN, WITHHELD, Template

if TYPE_CHECKING:
    from collections.abc import Iterator

Split = Literal["train", "heldout"]
WITHHELD_SHARE = 0.25
"""Part of a held-out set told by withheld templates; the rest uses seen ones with fresh numbers and words."""

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
        withheld = split == "heldout" and rng.random() < WITHHELD_SHARE
        yield problem(rng, rng.choice(WITHHELD if withheld else SEEN))


def problem(rng: random.Random, template: Template) -> Problem:
    numbers = _draw_legal_numbers(rng, template.moves)
    context = _draw_words(rng, template)
    people = context["people_drawn"].split()
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


def _draw_words(rng: random.Random, template: Template) -> dict[str, str]:
    people = rng.sample(words.NAMES, 4)
    return {
        **rng.choice(template.world.lexicon),
        **words.PRONOUNS[people[0][1]],
        **{letter: name for letter, (name, _) in zip("ABC", people, strict=False)},
        "place": rng.choice(words.PLACES),
        "day": rng.choice(words.DAYS),
        "relative": rng.choice(words.RELATIVES),
        "people_drawn": " ".join(name for name, _ in people),
    }


# ---------------------------------------------------------------------------------------------------------------------
# Numbers


def _draw_legal_numbers(rng: random.Random, moves: tuple[Move, ...]) -> list[dict[str, int]]:
    while True:
        numbers = _draw_numbers(rng, moves)
        if numbers is not None:
            return numbers


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
