"""Sentence pairs that are made up, for a first try: no download, and small enough for a laptop."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..spec import Size
from .parallel import ParallelText, Sides, cut

TENS = {
    "twenty": "zwanzig", "thirty": "dreißig", "forty": "vierzig", "fifty": "fünfzig", "sixty": "sechzig",
    "seventy": "siebzig", "eighty": "achtzig", "ninety": "neunzig",
}  # fmt: skip
ONES = {
    "two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs", "seven": "sieben",
    "eight": "acht", "nine": "neun",
}  # fmt: skip
THINGS = {
    "apples": "Äpfel", "pears": "Birnen", "eggs": "Eier", "lemons": "Zitronen", "onions": "Zwiebeln",
    "potatoes": "Kartoffeln", "plums": "Pflaumen", "nuts": "Nüsse", "cups": "Tassen", "books": "Bücher",
}  # fmt: skip
KINDS = {
    "red": "rote", "green": "grüne", "small": "kleine", "large": "große", "cheap": "billige", "beautiful": "schöne",
    "old": "alte", "new": "neue",
}  # fmt: skip
ASKED = {
    "We need {}.": "Wir brauchen {}.",
    "She has sold {}.": "Sie hat {} verkauft.",
    "I would like to buy {}.": "Ich möchte {} kaufen.",
    "Can you find {} for me?": "Kannst du {} für mich finden?",
    "Yesterday they brought {}.": "Gestern brachten sie {}.",
}


@dataclass(frozen=True)
class ShoppingLists(ParallelText):
    """Shopping lists, made up, in English and in German, where numbers and verbs stand in another order."""

    pairs: Size = 6000  # of which a twentieth each is to validate and to test
    seed: int = 1

    @property
    def name(self) -> str:
        return "shopping-lists"

    def sides(self) -> dict[str, Sides]:
        chance, found = np.random.default_rng(self.seed), dict[str, str]()
        while len(found) < self.pairs:
            found.update([shopping_list(chance)])
        sides = Sides([one.encode() for one in found], [other.encode() for other in found.values()])
        return cut(sides, valid=0.05, test=0.05)


def shopping_list(chance: np.random.Generator) -> tuple[str, str]:
    english, german = zip(*(item(chance) for _ in range(chance.integers(1, 4))), strict=True)
    asked, gefragt = draw(chance, ASKED)
    return asked.format(listed(english, "and")), gefragt.format(listed(german, "und"))


def item(chance: np.random.Generator) -> tuple[str, str]:
    """`twenty-three small apples`, `dreiundzwanzig kleine Äpfel`"""
    one, ten = draw(chance, ONES), draw(chance, TENS)
    count = (f"{ten[0]}-{one[0]}", f"{one[1]}und{ten[1]}") if chance.random() < 0.6 else one
    words = [count, *([draw(chance, KINDS)] if chance.random() < 0.5 else []), draw(chance, THINGS)]
    return " ".join(word for word, _ in words), " ".join(word for _, word in words)


def draw(chance: np.random.Generator, words: dict[str, str]) -> tuple[str, str]:
    return [*words.items()][chance.integers(len(words))]


def listed(items: Sequence[str], and_: str) -> str:
    *rest, last = items
    return f"{', '.join(rest)} {and_} {last}" if rest else last
