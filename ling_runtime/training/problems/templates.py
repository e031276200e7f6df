"""Stories as orders of moves, thousands of them, an eighth of which is withheld from training.

A template is a world, an opening, some moves and perhaps an end. A first version listed a hundred of them by hand; a
model learned those by heart and solved every fresh problem of a listed order and half of the others. Drawn freely, the
orders make it read the story. Whether an order is withheld follows from a checksum of its name.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from typing import TYPE_CHECKING

from ling_runtime.training.problems import compare, crowds, holdings, making, money, tasks

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from ling_runtime.training.problems.move import Move, World

WORLDS = (holdings.WORLD, money.WORLD, making.WORLD, compare.WORLD, tasks.WORLD, crowds.WORLD)
FEWEST_STEPS, MOST_STEPS = 2, 5
_STEP_WEIGHTS = (30, 40, 20, 10)
_WITHHELD_ONE_IN = 8


@dataclass(frozen=True)
class Template:
    world: World
    opening: str
    steps: tuple[str, ...]

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

    @property
    def withheld(self) -> bool:
        return zlib.crc32(self.name.encode()) % _WITHHELD_ONE_IN == 0

    @property
    def tellable(self) -> bool:
        """Two to five steps, and an end that counts three people has three."""
        needed = self.moves[-1].people
        return FEWEST_STEPS <= self.step_count <= MOST_STEPS and needed in (None, len(self.steps))


def draw(rng: random.Random, *, withheld: bool) -> Template:
    """An order of moves of the wanted kind; lengths are weighed, since long orders are the most numerous by far."""
    while True:
        template = _draw_order(rng)
        if template.tellable and template.withheld == withheld:
            return template


def _draw_order(rng: random.Random) -> Template:
    world = rng.choice(WORLDS)
    opening = rng.choice(sorted(world.openings))
    end = (rng.choice(world.ends),) if rng.random() < 0.5 else ()
    left = rng.choices(range(FEWEST_STEPS, MOST_STEPS + 1), _STEP_WEIGHTS)[0]
    left -= Template(world, opening, end).step_count
    steps = []
    for step in rng.sample(world.middles, len(world.middles)):
        cost = len(world.moves[step].expressions)
        if cost <= left:
            steps.append(step)
            left -= cost
    return Template(world, opening, (*steps, *end))


def every_template() -> Iterator[Template]:
    """All orders that can be drawn. Slow; for counting and for tests."""
    for world in WORLDS:
        for opening in world.openings:
            for count in range(MOST_STEPS + 1):
                for steps in permutations(world.middles, count):
                    for end in ((), *((end,) for end in world.ends)):
                        template = Template(world, opening, (*steps, *end))
                        if template.tellable:
                            yield template
