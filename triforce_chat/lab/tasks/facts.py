"""Facts that nobody can guess, to be planted into long documents and asked for."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from triforce_chat.lab.tasks.frames import COMPOSED, FRAMES, VARIED, Frame
from triforce_chat.lab.tasks.frames.wordings import (
    ABSENT_REPLY,
    ASIDES,
    OPENINGS,
    PAGE_QUESTIONS,
    PAGE_REPLY,
    REPLY,
    TWO_STEP_REPLY,
)
from triforce_chat.lab.tasks.pools import ORDINARY, POOLS, in_split

SINGLE = ("number", "name", "place", "date", "object")  # kinds that take one sentence
PLANTED = (*SINGLE, "two-step", "page")
ALL = (*PLANTED, "absent")
ABSENT_ANSWER = "not in the document"
PAGE_SLOT = "{page}"  # stands in the reply to a question for a page until the page is known

_SLOT = re.compile(r"\{(a )?([a-z]+[0-9]?)\}")
_VOWELS = (*"aeiou", "hour")
_LOWERED = frozenset(
    ["What", "Which", "Who", "Where", "When", "How", "In", "On", "At", "To", "Of", "By", "Off"]
)
_TRIES = 200  # draws before the pools count as exhausted
_NEAR_MISS = 0.5  # of the absent facts: another attribute of a subject that is planted
_ADORNED = 0.15  # of the questions and of the sentences


@dataclass(frozen=True, slots=True)
class Fact:
    """Something to plant, a question that only the planted sentences answer, and the answer."""

    kind: str
    sentences: tuple[str, ...]  # each goes to a place of its own; none for "absent"
    question: str
    answer: str  # what a right answer must contain; empty for "page" until it is planted
    reply: str  # a whole sentence around the answer

    def on_page(self, number: int) -> Fact:
        """The same fact with its page, for the kind "page"; any other stays as it is."""
        if self.kind != "page":
            return self
        reply = self.reply.replace(PAGE_SLOT, str(number))
        return Fact(self.kind, self.sentences, self.question, str(number), reply)


def make_facts(
    rng: random.Random, count: int, kinds: Sequence[str] = ALL, split: str = "train"
) -> list[Fact]:
    """``count`` facts with different subjects; a kind listed twice comes twice as often.

    "train" and "test" share no word, no invented name, and a quarter of the wordings is kept for "test".
    Raises ``KeyError`` for an unknown kind and ``ValueError`` when the pools hold no further subjects.
    """
    return facts_of(rng, [rng.choice(kinds) for _ in range(count)], split)


def facts_of(rng: random.Random, kinds: Sequence[str], split: str = "train") -> list[Fact]:
    """One fact of each of these kinds, in this order; otherwise like ``make_facts``."""
    writer = Writer(rng, split)
    # The absent ones come last: they may ask for something else about a subject that is planted.
    facts = {i: writer.fact(kind) for i, kind in enumerate(kinds) if kind != "absent"}
    facts |= {i: writer.absent() for i, kind in enumerate(kinds) if kind == "absent"}
    return [facts[i] for i in range(len(kinds))]


def slots(text: str) -> list[str]:
    """The names in braces, in order."""
    return [match[2] for match in _SLOT.finditer(text)]


def frames_of(kind: str, split: str) -> Sequence[Frame]:
    """The written frames that are trained on, or those that are kept for evaluation."""
    return [frame for i, frame in enumerate(FRAMES[kind]) if in_split(i, split)]


@dataclass(slots=True)
class Writer:
    """Writes the facts of one document; what it used once it does not use again."""

    rng: random.Random
    split: str
    used: set[str] = field(default_factory=set)
    planted: list[tuple[Frame, Mapping[str, str]]] = field(default_factory=list)
    asked: set[tuple[int, str]] = field(default_factory=set)

    def fact(self, kind: str) -> Fact:
        if kind == "page":
            return self._page()
        frame, values = self._filled(kind)
        self.planted.append((frame, values))
        return Fact(
            kind,
            self._sentences(frame, values),
            self._adorned(filled(self.rng.choice(frame.questions), values)),
            values[frame.answer],
            reply(frame, values),
        )

    def absent(self) -> Fact:
        near = self._near_miss() if self.rng.random() < _NEAR_MISS else None
        frame, values = near or self._filled(self.rng.choice(SINGLE))
        question = filled(self.rng.choice(frame.questions), values)
        return Fact("absent", (), self._adorned(question), ABSENT_ANSWER, ABSENT_REPLY)

    def _page(self) -> Fact:
        frame, values = self._filled(self.rng.choice(SINGLE))
        self.planted.append((frame, values))
        question = self.rng.choice(PAGE_QUESTIONS).format(about=filled(frame.about, values))
        return Fact("page", self._sentences(frame, values), question, "", PAGE_REPLY)

    def _near_miss(self) -> tuple[Frame, Mapping[str, str]] | None:
        """Another frame about a subject that has been planted; None where there is none."""
        for planted, values in self.rng.sample(self.planted, len(self.planted)):
            subject = set(slots(planted.questions[0]))
            others = [
                frame
                for kind in SINGLE
                for frame in self._frames(kind)
                if frame.about != planted.about and set(slots(frame.questions[0])) == subject
            ]
            for frame in self.rng.sample(others, len(others)):
                key = (id(frame), filled(frame.questions[0], values))
                if key not in self.asked:
                    self.asked.add(key)
                    return frame, values
        return None

    def _frames(self, kind: str) -> Sequence[Frame]:
        """Half are varied, the others written and composed; for evaluation half are written, half kept for it."""
        trained = frames_of(kind, "train")
        if self.split == "train":
            return self.rng.choice((trained, COMPOSED[kind], VARIED[kind], VARIED[kind]))
        return trained if self.rng.random() < 0.5 else frames_of(kind, "test")

    def _filled(self, kind: str) -> tuple[Frame, Mapping[str, str]]:
        for _ in range(_TRIES):
            frame = self.rng.choice(self._frames(kind))
            names = dict.fromkeys(
                name for text in (*frame.sentences, *frame.questions) for name in slots(text)
            )
            values = {name: self._draw(name) for name in names}
            new = {value for name, value in values.items() if name not in ORDINARY}
            if new.isdisjoint(self.used) and len(set(values.values())) == len(values):
                self.used |= new
                return frame, values
        raise ValueError("the pools of facts are exhausted; ask for fewer facts at once")

    def _draw(self, name: str) -> str:
        return POOLS[name.rstrip("0123456789")].draw(self.rng, self.split)

    def _sentences(self, frame: Frame, values: Mapping[str, str]) -> tuple[str, ...]:
        sentences = [capital(filled(sentence, values)) for sentence in frame.sentences]
        if sentences[0].startswith("The ") and self.rng.random() < _ADORNED:
            sentences[0] = self.rng.choice(ASIDES) + sentences[0].removeprefix("The ")
        return tuple(sentences)

    def _adorned(self, question: str) -> str:
        question = capital(question)
        first = question.split(maxsplit=1)[0]
        if not question.endswith("?") or first not in _LOWERED or self.rng.random() >= _ADORNED:
            return question
        return self.rng.choice(OPENINGS) + question[0].lower() + question[1:]


def reply(frame: Frame, values: Mapping[str, str]) -> str:
    """The answer with the article that the document gives it; behind a person or place between two steps."""
    found = re.search(rf"(the )?\{{(a )?{frame.answer}\}}", frame.sentences[-1])
    answer = filled(found[0] if found else f"{{{frame.answer}}}", values)
    if len(frame.sentences) == 1:
        return REPLY.format(answer=answer)
    first, second = (slots(sentence) for sentence in frame.sentences)
    bridge = next(name for name in first if name in second)
    return TWO_STEP_REPLY.format(bridge=values[bridge], answer=answer)


def filled(text: str, values: Mapping[str, str]) -> str:
    return _SLOT.sub(lambda match: _article(values[match[2]]) if match[1] else values[match[2]], text)


def _article(word: str) -> str:
    return f"an {word}" if word.startswith(_VOWELS) else f"a {word}"


def capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
