"""World of comparisons: each person is measured against the one before, and the end asks about several at once.

`P` is the person of the move before and `Q` the new one, so a chain of moves brings in a new person each time.
"""

from __future__ import annotations

from ling_runtime.training.problems.move import World, move
from ling_runtime.training.problems.words import THINGS

_OPENINGS = {
    "has": move(
        "",
        ("{A} {did} {x} {things}.",),
        ("At the {place} {A} {did} {x} {things}.",),
        ("On {day} {A} {did} {x} {things}.",),
    ),
    "packs": move(
        "n*m",
        ("{A} {did} {n} bags of {m} {things}.", "{A} {did} {n} * {m} = {y} {things}."),
        ("{A} {did} {m} {things} on each of {n} days.", "In {n} days {A} {did} {n} * {m} = {y} {things}."),
    ),
}

_MOVES = {
    "more": move(
        "x+n",
        ("{Q} {did} {n} more {things} than {P}.", "{Q} {did} {n} more, so {x} + {n} = {y} {things}."),
        ("Compared with {P}, {Q} {did} {n} {things} more.", "For {Q} this makes {x} + {n} = {y} {things}."),
    ),
    "fewer": move(
        "x-n",
        ("{Q} {did} {n} fewer {things} than {P}.", "{Q} {did} {n} fewer, so {x} - {n} = {y} {things}."),
        ("Compared with {P}, {Q} {did} {n} {things} less.", "For {Q} this leaves {x} - {n} = {y} {things}."),
    ),
    "times": move(
        "x*n",
        ("{Q} {did} {n} times as many {things} as {P}.", "{Q} {did} {x} * {n} = {y} {things}."),
        ("For each one of {P}, {Q} {did} {n}.", "With {n} for each one, {Q} {did} {x} * {n} = {y} {things}."),
    ),
    "twice": move(
        "x*2",
        ("{Q} {did} twice as many {things} as {P}.", "Twice as many for {Q} is {x} * 2 = {y} {things}."),
        ("{Q} {did} double the number of {P}.", "Double the number of {P} is {x} * 2 = {y} {things}."),
    ),
    "half": move(
        "x/2",
        ("{Q} {did} half as many {things} as {P}.", "Half as many for {Q} is {x} / 2 = {y} {things}."),
        ("{Q} {did} only half of what {P} did.", "Half of that is {x} / 2 = {y} {things} for {Q}."),
    ),
    "part": move(
        "x/n",
        ("{P} {did} {n} times as many {things} as {Q}.", "So {Q} {did} {x} / {n} = {y} {things}."),
    ),
    "both": move(
        "v0+x",
        ("They put the {things} of {A} and {P} in one box.", "{A} and {P} have {v0} + {x} = {y} {things}."),
        ("Now count {A} and {P} together.", "Counting {A} and {P} gives {v0} + {x} = {y} {things}."),
        ask="How many {things} is that?",
    ),
    "three": move(
        "v0+v1; y1+v2",
        (
            "They put everything together.",
            "{A} and {B} have {v0} + {v1} = {y} {things}.",
            "With {C} that is {y1} + {v2} = {y} {things}.",
        ),
        (
            "All three count together.",
            "The first two count {v0} + {v1} = {y} {things}.",
            "All three count {y1} + {v2} = {y} {things}.",
        ),
        ask="How many {things} do they have in total?",
        people=3,
    ),
    "gap": move(
        "x-v0",
        ("Compare {P} with {A}.", "{P} is ahead of {A} by {x} - {v0} = {y} {things}."),
        ("Look at {P} and {A}.", "From {A} to {P} it is {x} - {v0} = {y} {things}."),
        ask="How many more {things} does {P} have than {A}?",
    ),
    "lag": move(
        "v0-x",
        ("Compare {A} with {P}.", "{A} is ahead of {P} by {v0} - {x} = {y} {things}."),
        ("Look at {A} and {P}.", "From {P} to {A} it is {v0} - {x} = {y} {things}."),
        ask="How many more {things} does {A} have than {P}?",
    ),
    "pool": move(
        "v0+x; y1/n",
        (
            "{A} and {P} share all of theirs among {n} children.",
            "{A} and {P} have {v0} + {x} = {y} {things}.",
            "Each of the {n} children gets {y1} / {n} = {y} {things}.",
        ),
        (
            "{A} and {P} pack theirs into boxes of {n}.",
            "Together they pack {v0} + {x} = {y} {things}.",
            "In boxes of {n} that makes {y1} / {n} = {y}.",
        ),
        ask="What number comes out?",
    ),
}

_DEEDS = ("collected", "found", "sold", "bought", "counted", "sorted", "packed")

WORLD = World(
    name="compare",
    openings=_OPENINGS,
    moves=_MOVES,
    asks=("How many {things} does {P} have?", "How many {things} is that for {P}?"),
    lexicon=[{"things": things, "did": did} for things in THINGS for did in _DEEDS],
)
