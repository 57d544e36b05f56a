"""Templates of facts: statements with slots, and questions that only these statements answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from triforce_chat.lab.tasks.text_data import read_paragraphs

KINDS = ("number", "name", "place", "date", "object", "two-step")


@dataclass(frozen=True, slots=True)
class Template:
    """One statement, or the two of a two-step fact, and several wordings of the question.

    ``{town}`` is a slot, filled by the filler of that name. ``{a animal}`` adds an article; a digit at the end
    of a name (``{town2}``) makes a second slot with the same filler. All questions contain the same slots: they
    are the subject. In an aspect of a report, the sentences are alternative wordings of one statement.
    """

    sentences: tuple[str, ...]
    about: str  # the subject as a noun phrase: "the secret code of {city}"; empty for two steps and aspects
    answer: str  # name of the slot that the questions ask for
    questions: tuple[str, ...]


def read_templates(name: str) -> tuple[Template, ...]:
    """The templates of ``templates/NAME.txt``, one per paragraph.

    A paragraph holds the sentences, a line ``ANSWER: ABOUT``, and a line with a dash for each question.
    """
    return tuple(map(_template, read_paragraphs(name)))


def _template(lines: Sequence[str]) -> Template:
    questions = tuple(line.removeprefix("- ") for line in lines if line.startswith("- "))
    *sentences, subject = (line for line in lines if not line.startswith("- "))
    answer, _, about = subject.partition(":")
    return Template(tuple(sentences), about.strip(), answer, questions)


def _by_kind(folder: str) -> Mapping[str, tuple[Template, ...]]:
    return MappingProxyType({kind: read_templates(f"{folder}/{kind.replace('-', '_')}") for kind in KINDS})


WRITTEN = _by_kind("written")  # for training, except every fourth, which is held out for evaluation
# For training only: many relations, each asked for in other words and another syntax than the statement. A model
# trained on the written and composed templates alone missed indirect questions (a situation before a colon,
# passives, "whose", synonyms) and answered that the fact was not in the document. Many questions about two steps
# look as if one were enough: a model answers "What does the sister of ... sell?" with the name of the sister.
VARIED = _by_kind("varied")
