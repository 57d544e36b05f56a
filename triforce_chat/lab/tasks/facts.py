"""Invented facts that no model can know or guess, for questions about long documents."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from triforce_chat.lab.tasks.composed import COMPOSED
from triforce_chat.lab.tasks.fillers import FILLERS, SHARED, in_split
from triforce_chat.lab.tasks.template import VARIED, WRITTEN, Template
from triforce_chat.lab.tasks.wordings import (
    ABSENT_REPLY,
    ASIDES,
    OPENINGS,
    PAGE_QUESTIONS,
    PAGE_REPLY,
    REPLY,
    TWO_STEP_REPLY,
)

SINGLE = ("number", "name", "place", "date", "object")  # kinds of one sentence
PRESENT = (*SINGLE, "two-step", "page")
ALL = (*PRESENT, "absent")
ABSENT_ANSWER = "not in the document"
PAGE_SLOT = "{page}"  # placeholder in a reply until the page is known

_SLOT = re.compile(r"\{(a )?([a-z]+[0-9]?)\}")
_VOWELS = (*"aeiou", "hour")
_LOWERED = frozenset(
    ["What", "Which", "Who", "Where", "When", "How", "In", "On", "At", "To", "Of", "By", "Off"]
)
_TRIES = 200  # draws before the fillers count as exhausted
_NEAR_MISS = 0.5  # share of the absent facts that ask for another attribute of a subject in the document
_ADORNED = 0.15  # share of the questions and sentences that get a lead-in


@dataclass(frozen=True, slots=True)
class Fact:
    """Sentences to insert into a document, a question that only they answer, and the answer."""

    kind: str
    sentences: tuple[str, ...]  # inserted at separate places; none for "absent"
    question: str
    answer: str  # a correct reply contains it; empty for "page" until the fact is inserted
    reply: str  # the answer as a complete sentence

    def on_page(self, number: int) -> Fact:
        """Fill in the page number if the question asks for a page; other kinds are returned unchanged."""
        if self.kind != "page":
            return self
        reply = self.reply.replace(PAGE_SLOT, str(number))
        return Fact(self.kind, self.sentences, self.question, str(number), reply)


def make_facts(
    rng: random.Random, count: int, kinds: Sequence[str] = ALL, split: str = "train"
) -> list[Fact]:
    """Draw ``count`` facts on different subjects; a kind listed twice is drawn twice as often.

    The splits "train" and "test" share no filler words and no invented names, and a quarter of the written
    templates is held out for "test". Raises ``KeyError`` for an unknown kind and ``ValueError`` when the fillers
    are exhausted.
    """
    return facts_of(rng, [rng.choice(kinds) for _ in range(count)], split)


def facts_of(rng: random.Random, kinds: Sequence[str], split: str = "train") -> list[Fact]:
    """Draw one fact for each entry of ``kinds``, in that order, under the rules of ``make_facts``."""
    writer = Writer(rng, split)
    # Absent facts are drawn last: they may ask for something else about a subject of another fact.
    facts = {i: writer.fact(kind) for i, kind in enumerate(kinds) if kind != "absent"}
    facts |= {i: writer.absent() for i, kind in enumerate(kinds) if kind == "absent"}
    return [facts[i] for i in range(len(kinds))]


def slots(text: str) -> list[str]:
    """The names of the slots in ``text``, in order."""
    return [match[2] for match in _SLOT.finditer(text)]


def templates_of(kind: str, split: str) -> Sequence[Template]:
    """The written templates of ``kind`` for training, or those held out for evaluation ("test")."""
    return [template for i, template in enumerate(WRITTEN[kind]) if in_split(i, split)]


@dataclass(slots=True)
class Writer:
    """Writes the facts of one document without using a subject or value twice."""

    rng: random.Random
    split: str
    used: set[str] = field(default_factory=set)
    written: list[tuple[Template, Mapping[str, str]]] = field(default_factory=list)  # with their slot values
    asked: set[tuple[int, str]] = field(default_factory=set)  # near misses: id of the template, question

    def fact(self, kind: str) -> Fact:
        """A fact of any kind but "absent"."""
        if kind == "page":
            return self._page()
        template, values = self._filled(kind)
        self.written.append((template, values))
        return Fact(
            kind,
            self._sentences(template, values),
            self._adorned(filled(self.rng.choice(template.questions), values)),
            values[template.answer],
            reply(template, values),
        )

    def absent(self) -> Fact:
        """A question that the document does not answer."""
        near = self._near_miss() if self.rng.random() < _NEAR_MISS else None
        template, values = near or self._filled(self.rng.choice(SINGLE))
        question = filled(self.rng.choice(template.questions), values)
        return Fact("absent", (), self._adorned(question), ABSENT_ANSWER, ABSENT_REPLY)

    def _page(self) -> Fact:
        template, values = self._filled(self.rng.choice(SINGLE))
        self.written.append((template, values))
        question = self.rng.choice(PAGE_QUESTIONS).format(about=filled(template.about, values))
        return Fact("page", self._sentences(template, values), question, "", PAGE_REPLY)

    def _near_miss(self) -> tuple[Template, Mapping[str, str]] | None:
        """An unused template about a subject of the document, with the values of that subject; None without any."""
        for written, values in self.rng.sample(self.written, len(self.written)):
            subject = set(slots(written.questions[0]))
            others = [
                template
                for kind in SINGLE
                for template in self._templates(kind)
                if template.about != written.about and set(slots(template.questions[0])) == subject
            ]
            for template in self.rng.sample(others, len(others)):
                key = (id(template), filled(template.questions[0], values))
                if key not in self.asked:
                    self.asked.add(key)
                    return template, values
        return None

    def _templates(self, kind: str) -> Sequence[Template]:
        """Training draws varied templates half of the time; evaluation draws held-out ones half of the time."""
        training = templates_of(kind, "train")
        if self.split == "train":
            return self.rng.choice((training, COMPOSED[kind], VARIED[kind], VARIED[kind]))
        return training if self.rng.random() < 0.5 else templates_of(kind, "test")

    def _filled(self, kind: str) -> tuple[Template, Mapping[str, str]]:
        for _ in range(_TRIES):
            template = self.rng.choice(self._templates(kind))
            names = dict.fromkeys(
                name for text in (*template.sentences, *template.questions) for name in slots(text)
            )
            values = {name: self._draw(name) for name in names}
            new = {value for name, value in values.items() if name not in SHARED}
            if new.isdisjoint(self.used) and len(set(values.values())) == len(values):
                self.used |= new
                return template, values
        raise ValueError("the slot fillers are exhausted; ask for fewer facts at once")

    def _draw(self, name: str) -> str:
        return FILLERS[name.rstrip("0123456789")].draw(self.rng, self.split)

    def _sentences(self, template: Template, values: Mapping[str, str]) -> tuple[str, ...]:
        sentences = [capital(filled(sentence, values)) for sentence in template.sentences]
        if sentences[0].startswith("The ") and self.rng.random() < _ADORNED:
            sentences[0] = self.rng.choice(ASIDES) + sentences[0].removeprefix("The ")
        return tuple(sentences)

    def _adorned(self, question: str) -> str:
        question = capital(question)
        first = question.split(maxsplit=1)[0]
        if not question.endswith("?") or first not in _LOWERED or self.rng.random() >= _ADORNED:
            return question
        return self.rng.choice(OPENINGS) + question[0].lower() + question[1:]


def reply(template: Template, values: Mapping[str, str]) -> str:
    """A reply with the article used in the document; for two steps it also names the link between them."""
    found = re.search(rf"(the )?\{{(a )?{template.answer}\}}", template.sentences[-1])
    answer = filled(found[0] if found else f"{{{template.answer}}}", values)
    if len(template.sentences) == 1:
        return REPLY.format(answer=answer)
    first, second = (slots(sentence) for sentence in template.sentences)
    bridge = next(name for name in first if name in second)
    return TWO_STEP_REPLY.format(bridge=values[bridge], answer=answer)


def filled(text: str, values: Mapping[str, str]) -> str:
    """``text`` with its slots replaced by ``values``."""
    return _SLOT.sub(lambda match: _article(values[match[2]]) if match[1] else values[match[2]], text)


def _article(word: str) -> str:
    return f"an {word}" if word.startswith(_VOWELS) else f"a {word}"


def capital(sentence: str) -> str:
    """``sentence`` with an upper-case first letter."""
    return sentence[:1].upper() + sentence[1:]
