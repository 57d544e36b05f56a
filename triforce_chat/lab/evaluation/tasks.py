"""Documents with planted facts, one question each after the whole document, and the grading of answers."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from triforce_chat.lab.tasks.conversations import ExampleBuilder
from triforce_chat.lab.tasks.facts import ABSENT_ANSWER, SINGLE, facts_of

DOCUMENTS = 10
ABSENT_QUESTIONS = 3
PAGE_TOKENS = 500
KINDS = (*SINGLE, "two-step")  # of the planted facts, in turn over the depths
SAYS_ABSENT = (
    ABSENT_ANSWER,
    *(
        "not in the text",
        "not in this document",
        "not found in",
        "not given in",
        "not stated",
        "not specified",
    ),
    *(
        "not mentioned",
        "no mention",
        "does not mention",
        "doesn't mention",
        "is not provided",
        "not included in",
    ),
    *("does not say", "doesn't say", "does not state", "doesn't state", "does not tell", "does not specify"),
    *("does not contain", "doesn't contain", "does not provide", "doesn't provide", "does not include"),
    *("does not hold", "do not hold", "no information", "no answer", "not enough information"),
    *("cannot be found", "could not find", "cannot find", "can't find", "cannot answer", "not known"),
)
_QUOTES = str.maketrans({**dict.fromkeys('“”„«»"*_`', ""), **dict.fromkeys("’‘", "'")})
_SEPARATOR = re.compile(r"(?<=\d)[,\u2009\u202f'](?=\d{3}(?!\d))")
_ORDINAL = re.compile(r"(?<=\d)(?:st|nd|rd|th)\b")
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class TaskQuestion:
    """One question right after a document."""

    depth: float | None  # where its (first) sentence stands; None for what is absent
    kind: str
    suffix: list[int]  # follows the prefix; the answer comes next
    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class Case:
    """A document as a session sends it; every question follows it directly."""

    prefix: list[int]
    questions: list[TaskQuestion]


def planted_set(
    builder: ExampleBuilder,
    length: int,
    depths: int = 10,
    documents: int = DOCUMENTS,
    absent: int = ABSENT_QUESTIONS,
    page_tokens: int | None = None,
    seed: int = 0,
) -> list[Case]:
    """``documents`` cases with prefixes of ``length`` tokens, the questions' tokens on top of them.

    Each plants one fact at every depth 0, 1/depths, 2/depths, ..., so that over all cases every depth has
    different kinds, and asks for them and for ``absent`` things that are in none. With ``page_tokens`` the
    documents carry page marks and some facts ask for the page.
    """
    return [
        _case(builder, random.Random(f"{seed}/{length}/{i}"), length, depths, absent, page_tokens, i)
        for i in range(documents)
    ]


def grade(said: str, expected: str, kind: str) -> bool:
    """Whether an answer is right: it holds the expected words, or says that the document does not hold them.

    Case, quotes, emphasis, thousands separators and the order within a date do not count.
    """
    text = _plain(said)
    if kind == "absent":
        return any(phrase in text for phrase in SAYS_ABSENT)
    parts = expected.replace(",", "").split() if kind == "date" else [expected]
    return all(holds(text, part) for part in parts)


def holds(said: str, expected: str) -> bool:
    """Whether ``expected`` occurs in ``said`` as whole words."""
    return re.search(rf"(?<!\w){re.escape(_plain(expected))}(?!\w)", _plain(said)) is not None


def _case(
    builder: ExampleBuilder,
    rng: random.Random,
    length: int,
    depths: int,
    absent: int,
    page_tokens: int | None,
    turn: int,
) -> Case:
    kinds = KINDS if page_tokens is None else (*KINDS, "page")
    wanted = [kinds[(i + turn) % len(kinds)] for i in range(depths)] + ["absent"] * absent
    facts = facts_of(rng, wanted, split="test")
    where = [i / depths for i in range(depths)]
    made = builder.prompted(rng, length, facts[:depths], where, page_tokens, facts[depths:])
    places = [*where, *[None] * absent]
    return Case(
        made.prefix,
        [
            TaskQuestion(depth, fact.kind, suffix, fact.question, fact.answer)
            for depth, fact, suffix in zip(places, made.facts, made.suffixes, strict=True)
        ],
    )


def _plain(text: str) -> str:
    text = _ORDINAL.sub("", _SEPARATOR.sub("", text.translate(_QUOTES).lower()))
    return _SPACE.sub(" ", text).strip()
