"""Reports on one invented subject each, told in paragraphs of many facts, and plain questions about them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from triforce_chat.lab.tasks.facts import ABSENT_ANSWER, Fact, capital, filled, reply, slots
from triforce_chat.lab.tasks.frames.frame import Frame
from triforce_chat.lab.tasks.frames.reports import ASIDES, ASPECTS, HEADINGS, SUBJECTS
from triforce_chat.lab.tasks.frames.wordings import ABSENT_REPLY
from triforce_chat.lab.tasks.pools import POOLS

TOLD_ASPECTS = (12, 26)  # of a report; the others may be asked for and are absent
STATEMENTS = (2, 5)  # of a paragraph
ASIDE_SHARE = 0.35  # of the statements are followed by a sentence that answers nothing
HEADED_SHARE = 0.5  # of the reports have headings
NAMING = ("About {it}: ", "Speaking of {it}: ", "This is about {it}. ", "A question about {it}: ")


@dataclass(frozen=True, slots=True)
class Report:
    """What is told, in paragraphs, and questions: about what is told, and about what is not."""

    paragraphs: list[str]
    told: list[Fact]
    absent: list[Fact]


def reports(rng: random.Random, count: int) -> Iterator[Report]:
    """``count`` reports on different subjects; with several, every question names its subject."""
    for subject in rng.sample(SUBJECTS, count):
        yield report(rng, f"the {subject}", count > 1)


def report(rng: random.Random, it: str, named: bool = False) -> Report:
    """A report on ``it``. Nothing in it is told twice, and no figure or name comes twice."""
    used: set[str] = set()
    count = rng.randint(*TOLD_ASPECTS)
    aspects = rng.sample(ASPECTS, len(ASPECTS))
    told = [_told(rng, aspect, it, named, used) for aspect in aspects[:count]]
    absent = [
        Fact("absent", (), _asked(rng, aspect, it, named), ABSENT_ANSWER, ABSENT_REPLY)
        for aspect in aspects[count:]
    ]
    return Report(list(_paragraphs(rng, [fact.sentences[0] for fact in told])), told, absent)


def _told(rng: random.Random, aspect: Frame, it: str, named: bool, used: set[str]) -> Fact:
    statement = rng.choice(aspect.sentences)
    values = {"it": it} | {name: _draw(rng, name, used) for name in slots(statement) if name != "it"}
    one = Frame((statement,), aspect.about, aspect.answer, aspect.questions)
    return Fact(
        "report",
        (capital(filled(statement, values)),),
        _asked(rng, aspect, it, named),
        values[aspect.answer],
        reply(one, values),
    )


def _asked(rng: random.Random, aspect: Frame, it: str, named: bool) -> str:
    question = rng.choice(aspect.questions)
    if named and "{it}" not in question:
        question = rng.choice(NAMING) + question
    return filled(question, {"it": it})


def _draw(rng: random.Random, name: str, used: set[str]) -> str:
    while True:
        value = POOLS[name].draw(rng, "train")
        if value not in used:
            used.add(value)
            return value


def _paragraphs(rng: random.Random, statements: list[str]) -> Iterator[str]:
    headed = rng.random() < HEADED_SHARE
    headings = iter(rng.sample(HEADINGS, len(HEADINGS)))
    while statements:
        size = rng.randint(*STATEMENTS)
        part, statements = statements[:size], statements[size:]
        if headed and rng.random() < HEADED_SHARE and (heading := next(headings, None)):
            yield f"## {heading}"
        yield " ".join(
            f"{each} {rng.choice(ASIDES)}" if rng.random() < ASIDE_SHARE else each for each in part
        )
