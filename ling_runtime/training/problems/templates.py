"""The list of stories: which moves follow one another. Withheld ones never enter training, only held-out sets.

A withheld template is a new order of moves that training shows in other orders, so it asks for the composition and not
for words never seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ling_runtime.training.problems import compare, crowds, holdings, making, money, tasks

if TYPE_CHECKING:
    from ling_runtime.training.problems.move import Move, World


@dataclass(frozen=True)
class Template:
    world: World
    opening: str
    steps: tuple[str, ...]
    withheld: bool = False

    @cached_property
    def moves(self) -> tuple[Move, ...]:
        """The opening and what follows it."""
        return (self.world.openings[self.opening], *(self.world.moves[step] for step in self.steps))

    @property
    def name(self) -> str:
        return f"{self.world.name}: {self.opening} {' '.join(self.steps)}"

    @property
    def step_count(self) -> int:
        """Lines of arithmetic in the worked answer."""
        return sum(len(move.expressions) for move in self.moves)


# One story a line, "opening move move ..."; a leading * withholds it.
_STORIES: tuple[tuple[World, str], ...] = (
    (
        holdings.WORLD,
        """
        has buy give
        has lose double
        has receive share
        has buy lose receive
        has packs give
        has treat receive
        has double lose bag
        has give times price
        has receive halve buy
        has packs halve
        has buy treat double
        has lose packs share
        has buy give receive lose
        has treat price
        has times give bag
        has receive give buy halve price
        * has buy halve give
        * has treat buy bag
    """,
    ),
    (
        money.WORLD,
        """
        has earn spend
        works spend
        has gift goal
        has order earn
        works gift afford
        has wage spend
        has spend bank gift
        works order split
        has earn grow goal
        has gift spend fine earn
        works fine grow
        has wage order
        has bank earn split
        works earn spend bank goal
        has order gift fine afford
        * has gift order
        * works spend gift goal
    """,
    ),
    (
        making.WORLD,
        """
        makes spoil
        counts sold loose
        makes sold repack
        makes more spoil
        counts shipped loose
        makes loose half
        counts spoil days
        makes shipped
        counts more divide
        makes spoil income
        makes half twice order
        counts sold half income
        makes loose sold spoil
        makes more sold divide
        counts loose spoil order
        * makes sold half loose
        * counts more spoil repack
    """,
    ),
    (
        compare.WORLD,
        """
        has more both
        has fewer lag
        has times more
        has twice fewer gap
        packs more both
        has fewer more three
        has half more both
        packs fewer
        has more times pool
        has times fewer three
        packs half lag
        has part more pool
        packs twice gap
        has more fewer pool
        has half times both
        * has times fewer both
        * packs more pool
    """,
    ),
    (
        tasks.WORLD,
        """
        task some helper
        parts some
        task rate pace
        task extra some spread
        parts helper half
        task half extra minutes
        task chapter some
        parts extra rate
        task some double helper
        task helper some half pace
        parts rate minutes
        task crew some
        parts some chapter
        task rate extra spread
        task some half extra helper some
        * task extra helper half
        * parts some extra pace
    """,
    ),
    (
        crowds.WORLD,
        """
        inside enter leave
        groups leave
        inside leave double
        groups enter tables
        inside buses leave
        inside taxis fee
        groups half enter
        inside times leave
        groups leave teams
        inside enter half snacks
        groups taxis room
        inside double leave enter
        groups buses tables
        inside leave enter taxis
        groups enter leave half fee
        * inside leave half enter
        * groups leave enter teams
    """,
    ),
)


def _parse(world: World, line: str) -> Template:
    words = line.split()
    withheld = words[0] == "*"
    opening, *steps = words[withheld:]
    return Template(world, opening, tuple(steps), withheld)


TEMPLATES = tuple(_parse(world, line) for world, lines in _STORIES for line in lines.strip().splitlines())
SEEN = tuple(template for template in TEMPLATES if not template.withheld)
WITHHELD = tuple(template for template in TEMPLATES if template.withheld)
