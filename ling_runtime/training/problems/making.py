"""World of making: trays of rolls, rows of carrots, crates of fruit; counted, spoiled, repacked and sold."""

from __future__ import annotations

from ling_runtime.training.problems.move import World, move

_OPENINGS = {
    "makes": move(
        "n*m",
        ("{A} {makes} {n} {boxes} of {m} {things}.", "{A} starts with {n} * {m} = {y} {things}."),
        ("{A} {makes} {n} {boxes}, each with {m} {things}.", "The {n} {boxes} hold {n} * {m} = {y} {things}."),
        ("At the {place} {A} {makes} {n} {boxes} of {m} {things} each.", "That is {n} * {m} = {y} {things}."),
    ),
    "counts": move(
        "",
        ("{A} counts {x} {things} at the {place}.",),
        ("{A} {makes} {x} {things}.",),
        ("At the {place} {A} looks after {x} {things}.",),
    ),
}

_MOVES = {
    "more": move(
        "n*m; x+y1",
        (
            "The next day {he} {makes} {n} more {boxes} of {m} {things}.",
            "The next day adds {n} * {m} = {y} {things}.",
            "Now there are {x} + {y1} = {y} {things}.",
        ),
        (
            "{B} brings {n} {boxes} with {m} {things} each.",
            "{B} brings {n} * {m} = {y} {things}.",
            "Together they have {x} + {y1} = {y} {things}.",
        ),
    ),
    "loose": move(
        "x+n",
        ("Then {he} adds {n} single {things}.", "Adding {n} makes {x} + {n} = {y} {things}."),
        ("Another {n} {things} come from {B}.", "With {n} from {B} there are {x} + {n} = {y} {things}."),
    ),
    "spoil": move(
        "x-n",
        ("Of these {n} go bad.", "After {n} go bad, {x} - {n} = {y} {things} are left."),
        ("Rain ruins {n} of the {things}.", "The rain leaves {x} - {n} = {y} {things}."),
        ("{He} throws {n} of them away.", "Throwing {n} away leaves {x} - {n} = {y} {things}."),
    ),
    "sold": move(
        "x-n",
        ("In the morning {n} {things} are sold.", "After the morning {x} - {n} = {y} {things} are left."),
        ("{B} buys {n} of them.", "{B} buys {n}, so {x} - {n} = {y} {things} remain."),
        ("A school orders {n} {things}.", "The school takes {n}, which leaves {x} - {n} = {y} {things}."),
    ),
    "shipped": move(
        "n*m; x-y1",
        (
            "{n} {boxes} of {m} {things} are sent away.",
            "Sent away are {n} * {m} = {y} {things}.",
            "That leaves {x} - {y1} = {y} {things}.",
        ),
        (
            "{n} guests eat {m} {things} each.",
            "The {n} guests eat {n} * {m} = {y} {things}.",
            "After the guests {x} - {y1} = {y} {things} are left.",
        ),
    ),
    "half": move(
        "x/2",
        ("By noon half of them are gone.", "By noon {x} / 2 = {y} {things} are left."),
        ("Half of the {things} go to {C}.", "Without the half for {C} there are {x} / 2 = {y} {things}."),
    ),
    "days": move(
        "x*n",
        ("{He} does the same on {n} days.", "On {n} days that makes {x} * {n} = {y} {things}."),
        ("All {n} workers do as much as {A}.", "With {n} workers it is {x} * {n} = {y} {things}."),
    ),
    "twice": move(
        "x*2",
        ("{B} has made just as many and adds them.", "With as many from {B} there are {x} * 2 = {y} {things}."),
        ("On {day} the number is doubled.", "On {day} there are {x} * 2 = {y} {things}."),
    ),
    "repack": move(
        "x/n",
        ("{He} packs them into bags of {n}.", "The {things} fill {x} / {n} = {y} bags."),
        ("They are packed {n} to a bag.", "With {n} to a bag there are {x} / {n} = {y} bags."),
        ask="How many bags are there?",
    ),
    "divide": move(
        "x/n",
        ("{n} families share them equally.", "Each family gets {x} / {n} = {y} {things}."),
        ("They are divided equally among {n} shops.", "Each shop gets {x} / {n} = {y} {things}."),
        ask="How many {things} does each get?",
    ),
    "income": move(
        "x*n",
        ("{He} sells them at {n} dollars each.", "Selling {x} {things} brings {x} * {n} = {y} dollars."),
        ("Each one is sold for {n} dollars.", "At {n} dollars each this is {x} * {n} = {y} dollars."),
        ask="How many dollars does {A} take in?",
    ),
    "order": move(
        "n-x",
        ("A hotel needs {n} {things}.", "For the hotel {n} - {x} = {y} {things} are missing."),
        ("{C} wants {n} {things} in total.", "For {C} there are {n} - {x} = {y} {things} missing."),
        ask="How many more {things} are needed?",
    ),
}

_LEXICON = (
    ("bakes", "trays", "rolls cookies muffins buns pies tarts"),
    ("plants", "rows", "carrots onions tulips beans cabbages roses"),
    ("fills", "crates", "oranges melons bottles lemons potatoes pears"),
    ("stacks", "shelves", "books jars boxes plates cans games"),
    ("packs", "boxes", "candles soaps pens cups toys bulbs"),
    ("sets up", "tables", "vases lamps prizes masks kites dolls"),
    ("sews", "bundles", "shirts bags flags pillows quilts gloves"),
    ("paints", "sets", "tiles bowls eggs cards signs bricks"),
)

WORLD = World(
    name="making",
    openings=_OPENINGS,
    moves=_MOVES,
    asks=("How many {things} are left?", "How many {things} does {A} have at the end?"),
    lexicon=[{"makes": m, "boxes": b, "things": thing} for m, b, things in _LEXICON for thing in things.split()],
)
