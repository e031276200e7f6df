"""World of belongings: somebody has things, gets some, parts with some, and shares or sells the rest."""

from __future__ import annotations

from ling_runtime.training.problems.move import World, move
from ling_runtime.training.problems.words import STORES, THINGS

_OPENINGS = {
    "has": move(
        "",
        ("{A} has {x} {things}.",),
        ("{A} keeps {x} {things} in a {store}.",),
        ("On {day} morning {A} has {x} {things}.",),
        ("There are {x} {things} in the {store} of {A}.",),
    ),
}

_MOVES = {
    "buy": move(
        "x+n",
        ("{He} buys {n} more {things} at the {place}.", "After buying {n} more, {he} has {x} + {n} = {y} {things}."),
        ("Then {he} picks up {n} {things} at the {place}.", "With the {n} from the {place}, {he} has {x} + {n} = {y}."),
        ("{He} finds {n} {things} near the {place}.", "{He} finds {n}, so {he} has {x} + {n} = {y} {things}."),
    ),
    "receive": move(
        "x+n",
        ("{B} gives {him} {n} {things}.", "With the gift from {B} {he} has {x} + {n} = {y} {things}."),
        ("{His} {relative} sends {n} more {things}.", "{His} {relative} brings this to {x} + {n} = {y} {things}."),
        ("{He} wins {n} {things} in a game.", "Winning {n} makes it {x} + {n} = {y} {things}."),
    ),
    "give": move(
        "x-n",
        ("{He} gives {n} {things} to {C}.", "After giving {n} to {C}, {he} has {x} - {n} = {y} {things} left."),
        ("{His} {relative} asks for {n} of them and gets them.", "Then {x} - {n} = {y} {things} are left."),
        ("{C} borrows {n} {things}.", "{C} takes {n}, so {x} - {n} = {y} {things} are left."),
    ),
    "lose": move(
        "x-n",
        ("On the way home {he} loses {n} {things}.", "After losing {n}, {he} has {x} - {n} = {y} {things} left."),
        ("Later {n} of the {things} get broken.", "Without the {n} broken ones {he} has {x} - {n} = {y} {things}."),
        ("{He} leaves {n} {things} at the {place}.", "Leaving {n} behind, {he} keeps {x} - {n} = {y} {things}."),
    ),
    "packs": move(
        "n*m; x+y1",
        (
            "{He} buys {n} packs of {m} {things} each.",
            "The {n} packs hold {n} * {m} = {y} {things}.",
            "Together {he} has {x} + {y1} = {y} {things}.",
        ),
        (
            "{n} friends bring {him} {m} {things} each.",
            "The {n} friends bring {n} * {m} = {y} {things}.",
            "Now {he} has {x} + {y1} = {y} {things}.",
        ),
    ),
    "treat": move(
        "n*m; x-y1",
        (
            "{He} gives {m} {things} to each of {n} classmates.",
            "The {n} classmates get {n} * {m} = {y} {things}.",
            "That leaves {x} - {y1} = {y} {things}.",
        ),
        (
            "{He} sells {n} bags of {m} {things}.",
            "The {n} bags hold {n} * {m} = {y} {things}.",
            "After the sale {x} - {y1} = {y} {things} are left.",
        ),
    ),
    "double": move(
        "x*2",
        ("By {day} {he} has twice as many.", "Twice as many is {x} * 2 = {y} {things}."),
        ("Over the summer the number of {things} doubles.", "Doubled, that is {x} * 2 = {y} {things}."),
    ),
    "times": move(
        "x*n",
        ("A year later {he} has {n} times as many {things}.", "{n} times as many is {x} * {n} = {y} {things}."),
        ("By {day} the {things} are {n} times as many.", "By {day} {he} has {x} * {n} = {y} {things}."),
    ),
    "halve": move(
        "x/2",
        ("{He} gives half of the {things} to {C}.", "Half of {x} is {x} / 2 = {y} {things}."),
        ("{He} keeps only half of the {things}.", "{He} keeps half, which is {x} / 2 = {y} {things}."),
    ),
    "share": move(
        "x/n",
        ("{He} shares all of them equally among {n} friends.", "Each friend gets {x} / {n} = {y} {things}."),
        ("{n} children split all the {things} equally.", "With {n} children, each gets {x} / {n} = {y} {things}."),
        ask="How many {things} does each one get?",
    ),
    "bag": move(
        "x/n",
        ("{He} puts all of them into bags of {n}.", "{He} fills {x} / {n} = {y} bags."),
        ("{He} packs the {things} into bags that hold {n} each.", "With {n} in each, that makes {x} / {n} = {y} bags."),
        ask="How many bags does {he} fill?",
    ),
    "price": move(
        "x*n",
        ("{He} sells all of them for {n} dollars each.", "At {n} dollars each {he} gets {x} * {n} = {y} dollars."),
        ("A shop pays {n} dollars for each one.", "The shop pays {x} * {n} = {y} dollars."),
        ask="How many dollars does {he} get?",
    ),
}

WORLD = World(
    name="holdings",
    openings=_OPENINGS,
    moves=_MOVES,
    asks=("How many {things} does {A} have in the end?", "How many {things} does {A} have now?"),
    lexicon=[{"things": things, "store": store} for things in THINGS for store in STORES],
)
