"""Invented reports of many facts on one subject each, and plain questions about them.

Inserted sentences stand out in a novel. In a user's document the answer stands among many similar statements, and
the question does not name the subject by a rare word.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from triforce_chat.lab.tasks.facts import ABSENT_ANSWER, Fact, capital, filled, reply, slots
from triforce_chat.lab.tasks.fillers import FILLERS
from triforce_chat.lab.tasks.template import Template, read_templates
from triforce_chat.lab.tasks.text_data import read_lines
from triforce_chat.lab.tasks.wordings import ABSENT_REPLY

SUBJECTS = read_lines("reports/subjects")
ASPECTS = read_templates("reports/aspects")
ASIDES = read_lines("reports/asides")  # sentences that answer no question
HEADINGS = read_lines("reports/headings")
STATED_ASPECTS = (12, 26)  # fewest and most in a report; the others may be asked for and are absent
STATEMENTS = (2, 5)  # fewest and most in a paragraph
ASIDE_SHARE = 0.35  # of the statements that are followed by an aside
HEADED_SHARE = 0.5  # of the reports that have headings, and there of the paragraphs that do
NAMING = ("About {it}: ", "Speaking of {it}: ", "This is about {it}. ", "A question about {it}: ")


@dataclass(frozen=True, slots=True)
class Report:
    """Paragraphs of text, facts stated in them, and questions that they do not answer."""

    paragraphs: list[str]
    stated: list[Fact]
    absent: list[Fact]


def reports(rng: random.Random, count: int) -> Iterator[Report]:
    """Yield ``count`` reports on different subjects; with more than one, every question names its subject."""
    for subject in rng.sample(SUBJECTS, count):
        yield report(rng, f"the {subject}", count > 1)


def report(rng: random.Random, it: str, named: bool = False) -> Report:
    """A report on ``it`` that states nothing twice and repeats no figure or name."""
    used: set[str] = set()
    count = rng.randint(*STATED_ASPECTS)
    aspects = rng.sample(ASPECTS, len(ASPECTS))
    stated = [_stated(rng, aspect, it, named, used) for aspect in aspects[:count]]
    absent = [
        Fact("absent", (), _asked(rng, aspect, it, named), ABSENT_ANSWER, ABSENT_REPLY)
        for aspect in aspects[count:]
    ]
    return Report(list(_paragraphs(rng, [fact.sentences[0] for fact in stated])), stated, absent)


def _stated(rng: random.Random, aspect: Template, it: str, named: bool, used: set[str]) -> Fact:
    statement = rng.choice(aspect.sentences)
    values = {"it": it} | {name: _draw(rng, name, used) for name in slots(statement) if name != "it"}
    one = Template((statement,), aspect.about, aspect.answer, aspect.questions)
    return Fact(
        "report",
        (capital(filled(statement, values)),),
        _asked(rng, aspect, it, named),
        values[aspect.answer],
        reply(one, values),
    )


def _asked(rng: random.Random, aspect: Template, it: str, named: bool) -> str:
    question = rng.choice(aspect.questions)
    if named and "{it}" not in question:
        question = rng.choice(NAMING) + question
    return filled(question, {"it": it})


def _draw(rng: random.Random, name: str, used: set[str]) -> str:
    while True:
        value = FILLERS[name].draw(rng, "train")
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
