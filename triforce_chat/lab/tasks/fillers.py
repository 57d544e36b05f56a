"""Slot fillers: words, invented names and random figures that complete a template."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from triforce_chat.lab.tasks.text_data import read_word_lists

HELD_OUT = 4  # every fourth entry belongs to the test split


def in_split(index: int, split: str) -> bool:
    """True if the entry at ``index`` of a list belongs to ``split`` ("train" or "test")."""
    return (index % HELD_OUT == HELD_OUT - 1) == (split == "test")


class Filler(Protocol):
    """A source of values for one slot."""

    def draw(self, rng: random.Random, split: str) -> str:
        """A random value that belongs to ``split``."""


@dataclass(frozen=True, slots=True)
class WordList:
    """Draws from a list of words or phrases; the splits share no entry."""

    entries: tuple[str, ...]

    def draw(self, rng: random.Random, split: str) -> str:
        return rng.choice([word for i, word in enumerate(self.entries) if in_split(i, split)])


@dataclass(frozen=True, slots=True)
class WordPairs:
    """Draws combinations of two lists; the indices of both parts together decide the split."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    between: str = ""

    def draw(self, rng: random.Random, split: str) -> str:
        i = rng.randrange(len(self.first))
        choices = [word for j, word in enumerate(self.second) if in_split(i + j, split)]
        return f"{self.first[i]}{self.between}{rng.choice(choices)}"


@dataclass(frozen=True, slots=True)
class PersonNames:
    """Draws a first name and a surname, each from the split."""

    first: WordList
    surnames: WordPairs

    def draw(self, rng: random.Random, split: str) -> str:
        return f"{self.first.draw(rng, split)} {self.surnames.draw(rng, split)}"


@dataclass(frozen=True, slots=True)
class RandomFigures:
    """Draws random figures: too many to be guessed, so the splits need no separation."""

    make: Callable[[random.Random], str]

    def draw(self, rng: random.Random, split: str) -> str:  # noqa: ARG002
        return self.make(rng)


def _digits(rng: random.Random) -> str:
    length = rng.randint(4, 7)
    return str(rng.randrange(10 ** (length - 1), 10**length))


def _code(rng: random.Random) -> str:
    letters = "".join(rng.choices("ABCDEFGHJKLMNPQRSTUVWXYZ", k=rng.randint(2, 3)))
    return f"{letters}{rng.choice(('-', '', ' '))}{rng.randrange(100, 10_000)}"


def _big(rng: random.Random) -> str:
    return f"{rng.randrange(1_001, 99_999):,}"


def _date(rng: random.Random) -> str:
    day, month, year = rng.randint(1, 28), rng.choice(WORDS["months"]), rng.randint(1700, 1999)
    return rng.choice((f"{day} {month} {year}", f"{month} {day}, {year}"))


def _day(rng: random.Random) -> str:
    return f"{rng.randint(1, 28)} {rng.choice(WORDS['months'])}"


def _time(rng: random.Random) -> str:
    return f"{rng.randint(1, 12)}:{rng.randint(10, 59)}"


def _range(low: int, high: int) -> RandomFigures:
    return RandomFigures(lambda rng: str(rng.randint(low, high)))


def _pairs(first: str, second: str, between: str = "") -> WordPairs:
    return WordPairs(WORDS[first], WORDS[second], between)


WORDS = read_word_lists("fillers")
_SURNAMES = _pairs("name starts", "name ends")
FILLERS: Mapping[str, Filler] = MappingProxyType(
    {
        "city": WordList(WORDS["cities"]),
        "town": _pairs("place starts", "place ends"),
        "person": PersonNames(WordList(WORDS["first names"]), _SURNAMES),
        "surname": _SURNAMES,
        "ship": _pairs("ship adjectives", "ship nouns", " "),
        "street": _pairs("name starts", "streets", " "),
        "company": _pairs("name starts", "trades", "en "),
        "project": _pairs("project adjectives", "project nouns", " "),
        "profession": WordList(WORDS["professions"]),
        "animal": WordList(WORDS["animals"]),
        "object": WordList(WORDS["objects"]),
        "hidden": WordList(WORDS["places"]),
        "colour": WordList(WORDS["colours"]),
        "instrument": WordList(WORDS["instruments"]),
        "food": WordList(WORDS["foods"]),
        "building": WordList(WORDS["buildings"]),
        "tree": WordList(WORDS["trees"]),
        "estate": _pairs("place starts", "estate ends", " "),
        "inn": _pairs("inn adjectives", "inn nouns", " "),
        "river": _pairs("river starts", "river ends"),
        "pet": WordList(WORDS["pet names"]),
        "language": WordList(WORDS["languages"]),
        "flower": WordList(WORDS["flowers"]),
        "material": WordList(WORDS["materials"]),
        "digits": RandomFigures(_digits),
        "code": RandomFigures(_code),
        "big": RandomFigures(_big),
        "few": _range(12, 98),
        "many": _range(101, 999),
        "year": _range(1503, 1997),
        "date": RandomFigures(_date),
        "day": RandomFigures(_day),
        "time": RandomFigures(_time),
    }
)
SHARED: Sequence[str] = ("colour", "building")  # fillers whose values may recur within a document
