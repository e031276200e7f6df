"""World of long tasks: a book, a road, a field; so much is done, so much is left, and how many days will it take."""

from __future__ import annotations

from ling_runtime.training.problems.move import World, move

_OPENINGS = {
    "task": move(
        "",
        ("{A} has to {do} {x} {units}.",),
        ("{A} wants to {do} {x} {units} for {his} {relative}.",),
        ("For the {place} {A} must {do} {x} {units}.",),
    ),
    "parts": move(
        "n*m",
        ("{A} has to {do} {n} parts of {m} {units} each.", "All {n} parts are {n} * {m} = {y} {units}."),
        ("{A} plans to {do} {m} {units} a day for {n} days.", "The plan for {n} days is {n} * {m} = {y} {units}."),
    ),
}

_MOVES = {
    "some": move(
        "x-n",
        ("On {day} {he} {does} {n} {units}.", "After {day} there are {x} - {n} = {y} {units} left."),
        ("{He} {does} {n} {units} before lunch.", "After lunch {x} - {n} = {y} {units} are left."),
        ("First {he} {does} {n} {units}.", "First {n} are done, so {x} - {n} = {y} {units} are left."),
    ),
    "helper": move(
        "x-n",
        ("{B} helps and {does} {n} {units}.", "With the help of {B} only {x} - {n} = {y} {units} are left."),
        ("{His} {relative} {does} {n} of the {units}.", "{His} {relative} leaves {x} - {n} = {y} {units}."),
    ),
    "extra": move(
        "x+n",
        ("Then {n} more {units} are added.", "Adding {n} makes {x} + {n} = {y} {units}."),
        ("{B} asks {him} to {do} {n} more {units}.", "With {n} more for {B} it is {x} + {n} = {y} {units}."),
    ),
    "rate": move(
        "n*m; x-y1",
        (
            "Then {he} {does} {m} {units} a day for {n} days.",
            "In {n} days {he} {does} {n} * {m} = {y} {units}.",
            "That leaves {x} - {y1} = {y} {units}.",
        ),
        (
            "{n} friends {do} {m} {units} each.",
            "The {n} friends {do} {n} * {m} = {y} {units}.",
            "After the friends {x} - {y1} = {y} {units} are left.",
        ),
    ),
    "chapter": move(
        "n*m; x+y1",
        (
            "There are also {n} parts of {m} {units} each.",
            "The {n} parts are {n} * {m} = {y} {units}.",
            "In total that is {x} + {y1} = {y} {units}.",
        ),
        (
            "Then come {n} days with {m} {units} each.",
            "Those {n} days bring {n} * {m} = {y} {units}.",
            "So there are {x} + {y1} = {y} {units}.",
        ),
    ),
    "half": move(
        "x/2",
        ("By {day} half of this is done.", "By {day} {x} / 2 = {y} {units} are left."),
        ("{B} takes over half of the {units}.", "Without the half of {B} it is {x} / 2 = {y} {units}."),
    ),
    "double": move(
        "x*2",
        ("Then the job is doubled.", "Doubled, the job is {x} * 2 = {y} {units}."),
        ("In fact it takes twice as many {units}.", "Twice as many is {x} * 2 = {y} {units}."),
    ),
    "crew": move(
        "x*n",
        ("{n} people have to do the same.", "For {n} people it is {x} * {n} = {y} {units}."),
        ("This comes {n} times a year.", "In a year that makes {x} * {n} = {y} {units}."),
    ),
    "pace": move(
        "x/n",
        ("From now on {he} {does} {n} {units} a day.", "At {n} a day {he} needs {x} / {n} = {y} days."),
        ("{He} finishes by doing {n} {units} each day.", "Doing {n} each day takes {x} / {n} = {y} days."),
        ask="How many days does {he} need for the rest?",
    ),
    "spread": move(
        "x/n",
        ("{He} wants to finish in {n} days.", "To finish in {n} days {he} {does} {x} / {n} = {y} {units} a day."),
        ("The rest is spread evenly over {n} days.", "Over {n} days it is {x} / {n} = {y} {units} a day."),
        ask="How many {units} a day is that?",
    ),
    "minutes": move(
        "x*n",
        ("Each of them takes {n} minutes.", "At {n} minutes each the time is {x} * {n} = {y} minutes."),
        ("One takes {him} {n} minutes.", "The rest takes {x} * {n} = {y} minutes."),
        ask="How many minutes does the rest take?",
    ),
}

_LEXICON = (
    ("read", "reads", "pages"),
    ("type", "types", "pages"),
    ("walk", "walks", "miles"),
    ("ride", "rides", "miles"),
    ("lay", "lays", "bricks"),
    ("plant", "plants", "trees"),
    ("deliver", "delivers", "letters"),
    ("wash", "washes", "windows"),
    ("sew", "sews", "buttons"),
    ("paint", "paints", "boards"),
    ("fold", "folds", "napkins"),
    ("sort", "sorts", "files"),
    ("solve", "solves", "puzzles"),
    ("write", "writes", "cards"),
    ("check", "checks", "tickets"),
    ("dig", "digs", "holes"),
)

WORLD = World(
    name="tasks",
    openings=_OPENINGS,
    moves=_MOVES,
    asks=("How many {units} are left for {A}?", "How many {units} does {A} still have to {do}?"),
    lexicon=[{"do": do, "does": does, "units": units} for do, does, units in _LEXICON],
)
