"""Reads the questions about public-domain novels in ``comprehension/``: one TOML file per book."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources

KINDS = ("who", "where", "what", "why", "order", "end")
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class BookQuestion:
    """A question about a novel.

    ``evidence``: one or two verbatim quotes, each of which occurs once in the book, that show the answer.
    ``answers``: the strings of which a right answer contains one; " ... " separates parts that must all occur, in
    this order. Without answers, the book does not answer the question, and its one quote is from the passage that
    the question is about.
    """

    kind: str  # of KINDS
    text: str
    evidence: tuple[str, ...]
    answers: tuple[str, ...] = ()

    @property
    def passages(self) -> str:
        """How much of the book the answer takes: "one", "two", or "absent" if it is not there."""
        if not self.answers:
            return "absent"
        return "one" if len(self.evidence) == 1 else "two"


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """The questions about one book, in the order of their passages."""

    title: str
    author: str
    questions: tuple[BookQuestion, ...]


def question_sets() -> Iterator[QuestionSet]:
    """All sets, by the names of their files."""
    folder = resources.files(__package__) / "comprehension"
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        yield parse(file.read_text("utf-8"))


def parse(text: str) -> QuestionSet:
    """The questions in a TOML file."""
    fields = tomllib.loads(text)
    return QuestionSet(
        fields["title"],
        fields["author"],
        tuple(
            BookQuestion(
                each["kind"], each["question"], tuple(each["evidence"]), tuple(each.get("answers", ()))
            )
            for each in fields["question"]
        ),
    )


def find_quote(quote: str, text: str) -> int | None:
    """The position of a quote in a text, in characters; line breaks and runs of spaces do not matter."""
    words = _SPACE.split(quote.strip())
    found = re.search(r"\s+".join(map(re.escape, words)), text)
    return found.start() if found else None
