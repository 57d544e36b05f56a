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
