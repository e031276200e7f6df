"""The grammar of a story: worlds, moves and the little expressions that tie a sentence to its arithmetic.

An expression is `left op right` over registers: `x` the running quantity, `n` and `m` new numbers told in the
question, `y1`, `y2` results of earlier lines of the same move, `v0`, `v1`, ... the quantity after each move, or a
literal such as 2. A wording is chosen once per move and picks the sentence of the question and the lines of the answer
together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LIMIT = 999
MAX_FACTOR = 12
SMALLEST = 2  # "1 apples" is not English, so no quantity goes below two
_EXPRESSION = re.compile(r"(\w+)([-+*/])(\w+)")


@dataclass(frozen=True)
class Expression:
    left: str
    op: str
    right: str

    @classmethod
    def parse(cls, text: str) -> Expression:
        match = _EXPRESSION.fullmatch(text)
        assert match, f"not an expression: {text}"
        return cls(*match.groups())


@dataclass(frozen=True)
class Wording:
    tell: str
    """Sentence of the question."""
    work: tuple[str, ...]
    """Lines of the worked answer, one per expression of the move."""
    ask: str | None = None
    """Closing question, for moves that end a story with a quantity of their own."""


@dataclass(frozen=True)
class Move:
    expressions: tuple[Expression, ...]
    wordings: tuple[Wording, ...]
    people: int | None = None
    """An end that is about so many people, each brought in by one move; None: about any number."""

    @property
    def is_end(self) -> bool:
        return self.wordings[0].ask is not None


@dataclass(frozen=True, kw_only=True)
class World:
    name: str
    openings: Mapping[str, Move]
    """How a story starts; an opening without an expression states the first quantity outright."""
    moves: Mapping[str, Move]
    asks: tuple[str, ...]
    lexicon: Sequence[Mapping[str, str]]
    """Sets of words that belong together; one is drawn per story."""

    @property
    def middles(self) -> tuple[str, ...]:
        return tuple(name for name, move in self.moves.items() if not move.is_end)

    @property
    def ends(self) -> tuple[str, ...]:
        return tuple(name for name, move in self.moves.items() if move.is_end)


def move(expressions: str, *wordings: tuple[str, ...], ask: str | None = None, people: int | None = None) -> Move:
    """Build a move from "expr; expr" and (tell, line, line...) tuples."""
    parsed = tuple(Expression.parse(part) for part in expressions.replace(" ", "").split(";") if part)
    built = tuple(Wording(tell, lines, ask) for tell, *rest in wordings for lines in (tuple(rest),))
    assert all(len(w.work) == len(parsed) for w in built), f"{expressions}: one line per expression"
    return Move(parsed, built, people)


def apply(op: str, left: int, right: int) -> int | None:
    """The result, or None where the arithmetic leaves grade school: a remainder, a size, two large factors."""
    if op == "/":
        exact = 1 < right <= MAX_FACTOR and left % right == 0
        result = left // right if exact else -1
    elif op == "*":
        result = left * right if min(left, right) <= MAX_FACTOR else -1
    else:
        result = left + right if op == "+" else left - right
    return result if SMALLEST <= result <= LIMIT else None
