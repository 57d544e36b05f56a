"""Sentences to plant and questions about them; the names in braces are pools."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Frame:
    """One kind of statement in its wordings.

    ``{a animal}`` puts an article before the word; a digit at the end of a name (``{town2}``) tells two
    entries of one pool apart. Every question names the same entries: they are the subject.
    """

    sentences: tuple[str, ...]
    about: str  # the subject as a noun phrase: "the secret code of {city}"
    answer: str  # the name of the entry that is asked for
    questions: tuple[str, ...]


def frame(sentence: str, about: str, answer: str, questions: str) -> Frame:
    """A frame whose sentences and questions are written with bars between them."""
    sentences, asked = (tuple(part.strip() for part in text.split("|")) for text in (sentence, questions))
    return Frame(sentences, about, answer, asked)


def frames(text: str) -> tuple[Frame, ...]:
    """Frames written as paragraphs: the sentences, "answer: about", and a line with a dash for each question."""
    return tuple(_paragraph(part.strip().splitlines()) for part in text.strip().split("\n\n"))


def _paragraph(lines: list[str]) -> Frame:
    lines = [line.strip() for line in lines]
    asked = tuple(line.removeprefix("- ") for line in lines if line.startswith("- "))
    *sentences, subject = (line for line in lines if not line.startswith("- "))
    answer, _, about = subject.partition(":")
    return Frame(tuple(sentences), about.strip(), answer, asked)
