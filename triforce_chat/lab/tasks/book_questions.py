"""Questions about books, in one TOML file per book, and where their passages stand in a tokenized book.

Those in ``comprehension/``, about public-domain novels, only evaluate models: nothing may be trained on them.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from triforce_chat.chat.template import ChatFormat
from triforce_chat.documents import Document
from triforce_chat.errors import UsageError

KINDS = ("who", "where", "what", "why", "order", "end")
SAMPLE = 10  # questions of a set that tell whether it is about a document
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class BookQuestion:
    """A question about a novel.

    ``evidence``: one or two verbatim quotes, each of which occurs once in the book, that show the answer.
    ``answers``: the strings of which a right answer contains one; " ... " separates parts that must all occur, in
    this order. If the question is ``absent``, the book does not answer it, and its one quote is from the passage that
    the question is about. ``reply`` is a good answer in one or two sentences, for training.
    """

    kind: str  # of KINDS
    text: str
    evidence: tuple[str, ...]
    answers: tuple[str, ...] = ()
    absent: bool = False
    reply: str = ""

    @property
    def passages(self) -> str:
        """How much of the book the answer takes: "one", "two", or "absent" if it is not there."""
        if self.absent:
            return "absent"
        return "one" if len(self.evidence) == 1 else "two"


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """The questions about one book, in the order of their passages."""

    title: str
    author: str
    questions: tuple[BookQuestion, ...]


@dataclass(frozen=True, slots=True)
class Placed:
    """A question with the tokens of the book in which its passages begin."""

    question: BookQuestion
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class ReadBook:
    """A tokenized book with its questions in the order of their passages."""

    title: str
    author: str
    ids: Sequence[int]
    placed: Sequence[Placed]
    missing: int  # questions whose passages this edition lacks


def question_sets() -> Iterator[QuestionSet]:
    """All sets that evaluate models, by the names of their files."""
    folder = resources.files(__package__) / "comprehension"
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        yield parse(file.read_text("utf-8"))


def sets_in(folder: Path) -> list[QuestionSet]:
    """The sets in a folder's TOML files. Raises UsageError for a file that holds none, or a folder without files."""
    sets = []
    for file in sorted(folder.glob("*.toml")):
        try:
            sets.append(parse(file.read_text("utf-8")))
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise UsageError(f"{file} contains no set of questions: {error}") from error
    if not sets:
        raise UsageError(f"{folder} contains no .toml files with questions")
    return sets


def parse(text: str) -> QuestionSet:
    """The questions in a TOML file."""
    fields = tomllib.loads(text)
    return QuestionSet(
        fields["title"],
        fields["author"],
        tuple(
            BookQuestion(
                each["kind"],
                each["question"],
                tuple(each["evidence"]),
                tuple(each.get("answers", ())),
                each.get("absent", False),
                each.get("reply", ""),
            )
            for each in fields["question"]
        ),
    )


def find_quote(quote: str, text: str) -> int | None:
    """The position of a quote in a text, in characters; line breaks and runs of spaces do not matter."""
    words = _SPACE.split(quote.strip())
    found = re.search(r"\s+".join(map(re.escape, words)), text)
    return found.start() if found else None


def read_books(
    form: ChatFormat, documents: Iterable[Document], sets: Sequence[QuestionSet]
) -> list[ReadBook]:
    """Each document with its set of questions. Raises UsageError for a document without one."""
    return [_read(form, document, sets) for document in documents]


def _read(form: ChatFormat, document: Document, sets: Sequence[QuestionSet]) -> ReadBook:
    chosen = max(sets, key=lambda each: len(_places(each.questions[:SAMPLE], document.text)))
    places = _places(chosen.questions, document.text)
    if len(places) * 2 < len(chosen.questions):
        titles = ", ".join(each.title for each in sets)
        raise UsageError(f"no questions about {document.title}; there are some about {titles}")
    ends = form.token_ends(document.text)
    placed = [
        Placed(question, bisect_right(ends, min(spots)), bisect_right(ends, max(spots)))
        for question, spots in places
    ]
    placed.sort(key=lambda each: (each.first, each.last))
    missing = len(chosen.questions) - len(placed)
    return ReadBook(chosen.title, chosen.author, form.encode(document.text), placed, missing)


def _places(questions: Sequence[BookQuestion], text: str) -> list[tuple[BookQuestion, list[int]]]:
    spots = ((question, [find_quote(quote, text) for quote in question.evidence]) for question in questions)
    return [(question, [at for at in each if at is not None]) for question, each in spots if None not in each]
