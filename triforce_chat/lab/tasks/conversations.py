"""Examples of exact length: running text, and conversations about documents with inserted facts or reports."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from triforce_chat.chat.template import ChatFormat
from triforce_chat.lab.tasks.book_questions import ReadBook
from triforce_chat.lab.tasks.books import Book, PieceTokenizer
from triforce_chat.lab.tasks.dialogue import Dialogue, Example
from triforce_chat.lab.tasks.facts import PRESENT, Fact, make_facts
from triforce_chat.lab.tasks.needles import insert_facts
from triforce_chat.lab.tasks.reading import about_part
from triforce_chat.lab.tasks.reports import Report, reports
from triforce_chat.prompts import prompt

ABSENT_SHARE = 0.08
FAR_SHARE, FAR_DEPTH = 0.4, 0.15  # share of additional facts in this first part of a document
FIRST_DEPTH = 0.02  # one fact of every document stands within this first part
PAGED_SHARE = 0.5  # of the documents that have page marks
PAGE_TOKENS = (200, 900)
WHOLE_SHARE = 0.3  # of the texts that start at the beginning of a book
REPORT_TOKENS, MOST_REPORTS = 2_000, 12  # one report for this many tokens of a document
TOGETHER_SHARE = 0.4  # of the documents with reports that begin with all of them
SYSTEMS = (
    "You are a helpful assistant.",
    "Answer briefly and only from the text.",
    "You answer questions about documents.",
    "You are a librarian. Answer questions about the book you are shown.",
    "Read the document, then answer each question in one sentence.",
)


@dataclass(frozen=True, slots=True)
class DocumentPrompt:
    """A document as a session sends it, and one question per fact."""

    prefix: list[int]  # everything up to the question
    suffixes: list[list[int]]  # per fact, the question and the template up to the answer
    facts: list[Fact]


@dataclass(slots=True)
class ExampleBuilder:
    """Builds examples from books; the state of the random generator determines each example."""

    tokenizer: Any
    books: Sequence[Book]
    questioned: Sequence[ReadBook] = ()  # books with questions and replies
    format: ChatFormat = field(init=False)

    def __post_init__(self) -> None:
        self.format = ChatFormat(self.tokenizer)

    def running_text(self, rng: random.Random, length: int) -> Example:
        """``length`` tokens of one or more books from a random position."""
        return Example(self._text(rng, rng.choice(self.books), length), [])

    def prompt(self, rng: random.Random, length: int) -> list[int]:
        """A conversation of ``length`` tokens up to its first question, whose ids may be appended."""
        book = rng.choice(self.books)
        dialogue = Dialogue(self.format, _system(rng), book.title)
        return dialogue.prefix(self._text(rng, book, length - len(dialogue.prefix([]))))

    def with_questions(self, rng: random.Random, length: int, questions: int) -> Example:
        """A conversation of ``length`` tokens about a part of a book, with up to ``questions`` questions.

        Raises ``ValueError`` if no book with questions is that long.
        """
        long = [book for book in self.questioned if len(book.ids) >= length]
        if not long:
            raise ValueError(f"no book with questions has {length:,} tokens")
        book = rng.choice(long)
        return about_part(Dialogue(self.format, _system(rng), book.title), rng, book, length, questions)

    def with_facts(self, rng: random.Random, length: int, questions: int, split: str = "train") -> Example:
        """A conversation of ``length`` tokens about one document with inserted facts: ``questions`` questions."""
        pages = rng.randint(*PAGE_TOKENS) if rng.random() < PAGED_SHARE else None
        book = rng.choice(self.books)
        dialogue = Dialogue(self.format, _system(rng), book.title)
        facts = make_facts(rng, questions, _kinds(pages), split)
        # Page numbers are known only after insertion: count one digit each, cut off the surplus at the end.
        room = length - len(dialogue.whole([], [fact.on_page(1) for fact in facts]).ids)
        present = [fact for fact in facts if fact.sentences]
        where = depths(rng, len(present))
        paragraphs = self._paragraphs(rng, book)
        document, inserted = insert_facts(rng, paragraphs, present, where, self.format.encode, room, pages)
        asked = [*inserted, *(fact for fact in facts if not fact.sentences)]
        rng.shuffle(asked)
        surplus = len(dialogue.whole([], asked).ids) + len(document) - length
        return dialogue.whole(document[: len(document) - surplus], asked)

    def with_reports(self, rng: random.Random, length: int, questions: int) -> Example:
        """A conversation of ``length`` tokens about reports that stand between or before paragraphs of a book.

        Raises ``ValueError`` if ``length`` is too small for the reports.
        """
        book = rng.choice(self.books)
        dialogue = Dialogue(self.format, _system(rng), book.title)
        included = list(reports(rng, max(1, min(MOST_REPORTS, length // REPORT_TOKENS))))
        asked = _questions_about(rng, included, questions)
        room = length - len(dialogue.whole([], asked).ids)
        return dialogue.whole(self._report_document(rng, included, self._paragraphs(rng, book), room), asked)

    def _report_document(
        self, rng: random.Random, included: Sequence[Report], paragraphs: Iterator[Sequence[int]], room: int
    ) -> list[int]:
        """``room`` tokens of text that contain the reports complete."""
        tokenizer = PieceTokenizer(self.format.encode)
        parts = [[token for text in each.paragraphs for token in tokenizer.piece(text)] for each in included]
        free = room - sum(map(len, parts))
        if free < 0:
            raise ValueError(f"{room} tokens do not hold {len(included)} reports")
        together = rng.random() < TOGETHER_SHARE
        places = sorted(0 if together else rng.randrange(free + 1) for _ in parts)
        document: list[int] = []
        text = 0  # tokens of the book in the document
        for place, part in zip(places, parts, strict=True):
            while text < place:
                paragraph = next(paragraphs)
                if text + len(paragraph) > free:
                    break
                text += len(paragraph)
                document += paragraph
            document += part
        while len(document) < room:
            document += next(paragraphs)[: room - len(document)]
        return document

    def prompted(
        self,
        rng: random.Random,
        length: int,
        facts: Sequence[Fact],
        where: Sequence[float],
        page_tokens: int | None = None,
        absent: Sequence[Fact] = (),
    ) -> DocumentPrompt:
        """The prompt of a session about a document with ``facts`` at the depths ``where``.

        The prefix has ``length`` tokens, without the question. The inserted facts are returned in the order of
        their positions, then those of ``absent``.
        """
        book = rng.choice(self.books)
        dialogue = Dialogue(self.format, prompt("system"), book.title)
        room = length - len(dialogue.prefix([]))
        paragraphs = self._paragraphs(rng, book)
        document, inserted = insert_facts(
            rng, paragraphs, facts, where, self.format.encode, room, page_tokens
        )
        asked = [*inserted, *absent]
        return DocumentPrompt(
            dialogue.prefix(document), [dialogue.suffix(fact.question) for fact in asked], asked
        )

    def pair(
        self, rng: random.Random, length: int, fact: Fact, depth: float, others: Sequence[Fact] = ()
    ) -> tuple[list[int], list[int], list[int]]:
        """Prefix [length], question and reply ids for one fact among ``others`` at random depths."""
        facts = [fact, *others]
        where = [depth, *(rng.random() for _ in others)]
        made = self.prompted(rng, length, facts, where)
        asked = next(i for i, each in enumerate(made.facts) if each.question == fact.question)
        return made.prefix, made.suffixes[asked], self.format.encode(fact.reply)

    def _text(self, rng: random.Random, book: Book, length: int) -> list[int]:
        ids: list[int] = []
        for paragraph in self._paragraphs(rng, book):
            ids += paragraph
            if len(ids) >= length:
                break
        return ids[:length]

    def _paragraphs(self, rng: random.Random, book: Book) -> Iterator[Sequence[int]]:
        """Endless text: ``book`` from its start or a random position, then whole books in random order."""
        start = 0 if rng.random() < WHOLE_SHARE else rng.randrange(len(book.paragraphs))
        yield from book.paragraphs[start:]
        while True:
            yield from rng.choice(self.books).paragraphs


def _questions_about(rng: random.Random, included: Sequence[Report], questions: int) -> list[Fact]:
    """Questions about reports in random order, with the same share of absent facts as in other documents."""
    absent = min(round(questions * ABSENT_SHARE), sum(len(report.absent) for report in included))
    there = [fact for report in included for fact in report.stated]
    asked = rng.sample(there, min(questions - absent, len(there)))
    asked += rng.sample([fact for report in included for fact in report.absent], absent)
    rng.shuffle(asked)
    return asked


def depths(rng: random.Random, count: int) -> list[float]:
    """Random depths with more weight on the start of a document; one of them lies at its very beginning."""
    drawn = [rng.random() * (FAR_DEPTH if rng.random() < FAR_SHARE else 1) for _ in range(count)]
    if drawn:
        drawn[rng.randrange(count)] = rng.random() * FIRST_DEPTH
    return drawn


def _system(rng: random.Random) -> str | None:
    chance = rng.random()
    if chance < 0.5:
        return prompt("system")
    return rng.choice(SYSTEMS) if chance < 0.75 else None


def _kinds(page_tokens: int | None) -> list[str]:
    """Kinds to draw from, in which "absent" has its share; two-step questions, missed most, count twice."""
    kinds = [kind for kind in (*PRESENT, "two-step") if page_tokens or kind != "page"]
    many = 20
    absent = round(ABSENT_SHARE / (1 - ABSENT_SHARE) * len(kinds) * many)
    return kinds * many + ["absent"] * absent
