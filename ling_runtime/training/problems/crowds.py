"""World of crowds: people come and go at a venue, sit at tables, form teams and pay for tickets."""

from __future__ import annotations

from ling_runtime.training.problems.move import World, move

_OPENINGS = {
    "inside": move(
        "",
        ("There are {x} {people} at the {venue}.",),
        ("On {day} {x} {people} come to the {venue}.",),
        ("{A} counts {x} {people} at the {venue}.",),
    ),
    "groups": move(
        "n*m",
        ("{n} groups of {m} {people} come to the {venue}.", "The {n} groups are {n} * {m} = {y} {people}."),
        (
            "At the {venue} there are {n} rows with {m} {people} each.",
            "In {n} rows there are {n} * {m} = {y} {people}.",
        ),
        ("{n} buses bring {m} {people} each to the {venue}.", "The buses bring {n} * {m} = {y} {people}."),
    ),
}

_MOVES = {
    "enter": move(
        "x+n",
        ("Then {n} more {people} arrive.", "After {n} more arrive, there are {x} + {n} = {y} {people}."),
        ("{A} invites another {n} {people}.", "With the {n} of {A} there are {x} + {n} = {y} {people}."),
        ("At noon {n} {people} join them.", "At noon there are {x} + {n} = {y} {people}."),
    ),
    "leave": move(
        "x-n",
        ("After an hour {n} of them leave.", "After {n} leave, there are {x} - {n} = {y} {people}."),
        ("In the evening {n} {people} go home.", "When {n} go home, {x} - {n} = {y} {people} stay."),
        ("Of them {n} are too tired to go on.", "Without the {n} tired ones there are {x} - {n} = {y} {people}."),
    ),
    "buses": move(
        "n*m; x+y1",
        (
            "Later {n} vans bring {m} {people} each.",
            "The {n} vans bring {n} * {m} = {y} {people}.",
            "Now there are {x} + {y1} = {y} {people}.",
        ),
        (
            "Then {n} clubs send {m} {people} each.",
            "The {n} clubs send {n} * {m} = {y} {people}.",
            "With the clubs there are {x} + {y1} = {y} {people}.",
        ),
    ),
    "taxis": move(
        "n*m; x-y1",
        (
            "{n} taxis take away {m} {people} each.",
            "The {n} taxis take {n} * {m} = {y} {people}.",
            "That leaves {x} - {y1} = {y} {people}.",
        ),
        (
            "{n} boats leave with {m} {people} each.",
            "The {n} boats carry {n} * {m} = {y} {people}.",
            "On land {x} - {y1} = {y} {people} remain.",
        ),
    ),
    "half": move(
        "x/2",
        ("At night only half of them stay.", "At night {x} / 2 = {y} {people} stay."),
        ("Half of the {people} go swimming.", "Without the swimmers there are {x} / 2 = {y} {people}."),
    ),
    "double": move(
        "x*2",
        ("On {day} there are twice as many.", "On {day} there are {x} * 2 = {y} {people}."),
        ("Everyone brings one friend.", "With one friend each it is {x} * 2 = {y} {people}."),
    ),
    "times": move(
        "x*n",
        ("In summer there are {n} times as many.", "In summer there are {x} * {n} = {y} {people}."),
        ("The same number comes on {n} days.", "In {n} days that makes {x} * {n} = {y} {people}."),
    ),
    "tables": move(
        "x/n",
        ("They sit down at tables for {n}.", "At tables for {n} they need {x} / {n} = {y} tables."),
        ("Each table seats {n} of them.", "With {n} at each it takes {x} / {n} = {y} tables."),
        ask="How many tables do they fill?",
    ),
    "teams": move(
        "x/n",
        ("They form {n} equal teams.", "Each team has {x} / {n} = {y} {people}."),
        ("{A} splits them into {n} equal teams.", "With {n} teams each one has {x} / {n} = {y} {people}."),
        ask="How many {people} are in each team?",
    ),
    "fee": move(
        "x*n",
        ("Each of them pays {n} dollars.", "At {n} dollars each they pay {x} * {n} = {y} dollars."),
        ("A ticket for one costs {n} dollars.", "The tickets cost {x} * {n} = {y} dollars."),
        ask="How many dollars do they pay?",
    ),
    "snacks": move(
        "x*n",
        ("{A} hands {n} {snack} to each of them.", "{A} hands out {x} * {n} = {y} {snack}."),
        ("Each of them eats {n} {snack}.", "They eat {x} * {n} = {y} {snack}."),
        ask="How many {snack} is that?",
    ),
    "room": move(
        "n-x",
        ("The {venue} has room for {n}.", "There is still room for {n} - {x} = {y} {people}."),
        ("{A} hopes for {n} {people} in total.", "To get to {n} it takes {n} - {x} = {y} {people}."),
        ask="How many more {people} would that take?",
    ),
}

_PEOPLE = ("children", "guests", "visitors", "students", "players", "dancers", "singers", "tourists", "fans", "campers")
_VENUES = ("theater", "zoo", "pool", "camp", "stadium", "hall", "farm", "castle", "concert", "picnic", "club", "island")
_SNACKS = ("sandwiches", "cherries", "pretzels", "grapes", "crackers", "nuts")

WORLD = World(
    name="crowds",
    openings=_OPENINGS,
    moves=_MOVES,
    asks=("How many {people} are there now?", "How many {people} does that make?"),
    lexicon=[
        {"people": people, "venue": venue, "snack": snack}
        for people in _PEOPLE
        for venue in _VENUES
        for snack in _SNACKS
    ],
)
