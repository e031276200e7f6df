"""World of money: wages, prices, gifts and the things one saves for. Every amount is in whole dollars."""

from __future__ import annotations

from ling_runtime.training.problems.move import World, move
from ling_runtime.training.problems.words import CHORES, GOODS, ITEMS

_OPENINGS = {
    "has": move(
        "",
        ("{A} has {x} dollars.",),
        ("{A} takes {x} dollars to the {place}.",),
        ("{A} has saved {x} dollars.",),
        ("There are {x} dollars in the wallet of {A}.",),
    ),
    "works": move(
        "n*m",
        ("{A} works {n} hours for {m} dollars an hour.", "{A} earns {n} * {m} = {y} dollars."),
        ("{A} saves {m} dollars a week for {n} weeks.", "In {n} weeks {A} saves {n} * {m} = {y} dollars."),
        ("{A} sells {n} {goods} for {m} dollars each.", "The {n} {goods} bring {n} * {m} = {y} dollars."),
    ),
}

_MOVES = {
    "earn": move(
        "x+n",
        ("{He} earns {n} dollars by {chore}.", "With {n} dollars from {chore} {he} has {x} + {n} = {y} dollars."),
        ("{chore_cap} brings {him} {n} dollars.", "{chore_cap} makes it {x} + {n} = {y} dollars."),
    ),
    "gift": move(
        "x+n",
        ("{His} {relative} gives {him} {n} dollars.", "{His} {relative} brings it to {x} + {n} = {y} dollars."),
        ("{He} finds {n} dollars in a coat.", "Finding {n} dollars gives {him} {x} + {n} = {y} dollars."),
        ("For {his} birthday {he} gets {n} dollars.", "After the birthday {he} has {x} + {n} = {y} dollars."),
    ),
    "spend": move(
        "x-n",
        ("{He} spends {n} dollars on a {item}.", "After paying for the {item} {he} has {x} - {n} = {y} dollars left."),
        ("A {item} costs {him} {n} dollars.", "The {item} leaves {him} {x} - {n} = {y} dollars."),
        ("{He} lends {n} dollars to {B}.", "After lending {n} to {B}, {he} has {x} - {n} = {y} dollars."),
    ),
    "fine": move(
        "x-n",
        ("{He} pays {n} dollars for the bus.", "The bus leaves {x} - {n} = {y} dollars."),
        ("Lunch costs {n} dollars.", "After lunch {x} - {n} = {y} dollars are left."),
    ),
    "order": move(
        "n*m; x-y1",
        (
            "{He} buys {n} {goods} at {m} dollars each.",
            "The {goods} cost {n} * {m} = {y} dollars.",
            "That leaves {x} - {y1} = {y} dollars.",
        ),
        (
            "{He} pays {m} dollars a day for {n} days of parking.",
            "Parking costs {n} * {m} = {y} dollars.",
            "After parking {x} - {y1} = {y} dollars are left.",
        ),
    ),
    "wage": move(
        "n*m; x+y1",
        (
            "Then {he} works {n} hours for {m} dollars an hour.",
            "The work pays {n} * {m} = {y} dollars.",
            "Now {he} has {x} + {y1} = {y} dollars.",
        ),
        (
            "{He} saves {m} dollars a week for {n} weeks.",
            "In {n} weeks {he} saves {n} * {m} = {y} dollars.",
            "With the savings {he} has {x} + {y1} = {y} dollars.",
        ),
    ),
    "bank": move(
        "x/2",
        ("{He} puts half of the money in the bank.", "Half of {x} is {x} / 2 = {y} dollars, and that is left."),
        ("{He} gives half of it to {C}.", "Giving half to {C} leaves {x} / 2 = {y} dollars."),
    ),
    "grow": move(
        "x*2",
        ("{His} parents double the money.", "Doubled, it is {x} * 2 = {y} dollars."),
        ("By {day} {he} has twice as much.", "Twice as much is {x} * 2 = {y} dollars."),
    ),
    "goal": move(
        "n-x",
        ("{He} wants a {item} that costs {n} dollars.", "For the {item} {he} still needs {n} - {x} = {y} dollars."),
        ("A trip to the {place} costs {n} dollars.", "For the trip {he} still needs {n} - {x} = {y} dollars."),
        ask="How many more dollars does {he} need?",
    ),
    "afford": move(
        "x/n",
        ("{He} spends the rest on {goods} at {n} dollars each.", "The rest buys {x} / {n} = {y} {goods}."),
        ("With all of it {he} buys {goods} for {n} dollars each.", "{He} can buy {x} / {n} = {y} {goods}."),
        ask="How many {goods} does {he} get?",
    ),
    "split": move(
        "x/n",
        ("{He} splits the money equally among {n} cousins.", "Each cousin gets {x} / {n} = {y} dollars."),
        ("{n} charities get equal parts of it.", "Each charity gets {x} / {n} = {y} dollars."),
        ask="How many dollars does each one get?",
    ),
}

WORLD = World(
    name="money",
    openings=_OPENINGS,
    moves=_MOVES,
    asks=("How many dollars does {A} have left?", "How many dollars does {A} have now?"),
    lexicon=[
        {"goods": goods, "item": item, "chore": chore, "chore_cap": chore[0].upper() + chore[1:]}
        for goods in GOODS
        for item in ITEMS
        for chore in CHORES
    ],
)
