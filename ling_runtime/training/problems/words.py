"""The people, things and places that stories draw from. Data only; order matters, since a seed indexes into it."""

from __future__ import annotations

GIRLS = (
    "Mia", "Anna", "Zoe", "Lily", "Emma", "Nora", "Ruby", "Clara", "Ella", "Alice", "Julia", "Maria", "Sofia", "Hannah",
    "Grace", "Lucy", "Ivy", "Priya", "Fatima", "Yuki", "Elena", "Rosa", "Chloe", "Amara", "Leila", "Ingrid", "Carmen",
    "Tessa", "Olive", "Daisy",
)  # fmt: skip
BOYS = (
    "Tom", "Ben", "Leo", "Max", "Sam", "Noah", "Omar", "Luis", "Jack", "Henry", "Oscar", "Felix", "David", "Peter",
    "Simon", "Marco", "Ivan", "Kenji", "Ravi", "Ahmed", "Carlos", "Hugo", "Theo", "Adam", "Paul", "Diego", "Victor",
    "Bruno", "Nils", "Mateo",
)  # fmt: skip
NAMES = tuple((name, "she") for name in GIRLS) + tuple((name, "he") for name in BOYS)

PRONOUNS = {
    "she": {"he": "she", "He": "She", "his": "her", "His": "Her", "him": "her"},
    "he": {"he": "he", "He": "He", "his": "his", "His": "His", "him": "him"},
}

THINGS = (
    "apples", "marbles", "stickers", "pencils", "shells", "buttons", "stamps", "coins", "cards", "beads", "books",
    "pears", "plums", "lemons", "peaches", "oranges", "crayons", "ribbons", "postcards", "pebbles", "acorns",
    "toy cars", "badges", "balloons", "candles", "cookies", "muffins", "magnets", "feathers", "walnuts",
)  # fmt: skip
PLACES = (
    "market",
    "fair",
    "shop",
    "park",
    "school",
    "beach",
    "library",
    "museum",
    "station",
    "garden",
    "bakery",
    "harbor",
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
RELATIVES = ("uncle", "aunt", "grandmother", "grandfather", "brother", "sister", "cousin", "neighbor")
STORES = ("box", "drawer", "basket", "bag", "jar", "tin", "chest", "backpack")
ITEMS = (
    "jacket",
    "lamp",
    "bike",
    "guitar",
    "camera",
    "tent",
    "watch",
    "desk",
    "radio",
    "scarf",
    "chair",
    "clock",
    "drum",
)
GOODS = (
    "notebooks",
    "tickets",
    "plants",
    "mugs",
    "scarves",
    "brushes",
    "puzzles",
    "pillows",
    "cakes",
    "maps",
    "ropes",
    "hats",
)
CHORES = (
    "washing cars", "walking dogs", "mowing lawns", "babysitting", "raking leaves", "painting a fence", "feeding cats",
    "selling lemonade", "cleaning windows", "watering plants", "tutoring", "delivering papers",
)  # fmt: skip
