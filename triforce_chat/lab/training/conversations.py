"""Training examples: running text, and conversations about documents with planted facts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from triforce_chat.chat.template import ChatFormat, Message
from triforce_chat.lab.tasks.facts import PLANTED, Fact, make_facts
from triforce_chat.lab.tasks.planting import plant
from triforce_chat.lab.training.documents import Book, Pieces
from triforce_chat.lab.training.reports import Report, reports
from triforce_chat.prompts import prompt

ABSENT_SHARE = 0.08
FAR_SHARE, FAR_DEPTH = 0.4, 0.15  # so many facts stand in this first part
FIRST_DEPTH = 0.02  # where one fact of every document stands
PAGED_SHARE = 0.5  # of the documents have page marks
PAGE_TOKENS = (200, 900)
WHOLE_SHARE = 0.3  # of the texts begin where a book begins
REPORT_TOKENS, MOST_REPORTS = 2_000, 12  # a report for so many tokens of a document
TOGETHER_SHARE = 0.4  # of the documents with reports begin with all of them
SYSTEMS = (
    "You are a helpful assistant.",
    "Answer briefly and only from the text.",
    "You answer questions about documents.",
    "You are a librarian. Answer questions about the book you are shown.",
    "Read the document, then answer each question in one sentence.",
)
_MARK = -1  # stands in for contents that come later


@dataclass(frozen=True, slots=True)
class Example:
    """A text in tokens; ``answers`` are the ranges [start, end) of what the assistant says, its end included."""

    ids: list[int]
    answers: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Prompted:
    """A document as a session sends it, and for every fact the ids that ask for it right after the document."""

    prefix: list[int]
    suffixes: list[list[int]]
    facts: list[Fact]


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation about one document, rendered as a session renders it."""

    format: ChatFormat
    system: str | None  # None leaves it to the template
    title: str
    known: dict[str, list[int]] = field(default_factory=dict)  # what has been tokenized

    def prefix(self, document: Sequence[int]) -> list[int]:
        """What stands before the first question."""
        ids = self.format.render(self._messages([_MARK], []))
        return [*ids[: ids.index(_MARK)], *document, *self._after()]

    def suffix(self, question: str) -> list[int]:
        """The first question and what the template puts between it and the answer."""
        ids = self.format.render([*self._before(), Message("user", [_MARK, *self._text(question)])])
        return ids[ids.index(_MARK) + 1 :]

    def whole(self, document: Sequence[int], facts: Sequence[Fact]) -> Example:
        """The document and all questions with their answers, up to the line end after the last."""
        messages = self._messages(document, facts)
        said = range(len(messages) - 2 * len(facts) + 1, len(messages), 2)
        marked = [
            Message(message.role, [_MARK]) if i in said else message for i, message in enumerate(messages)
        ]
        ranges, before = [], 0  # how much longer the replies are than their marks
        marks = [at for at, token in enumerate(self.format.render(marked)) if token == _MARK]
        for i, at in zip(said, marks, strict=True):
            size = len(messages[i].content)
            ranges.append((at + before, at + before + size + 1))
            before += size - 1
        ids = self.format.render(messages)
        return Example(ids[: self._end(ids, ranges[-1][1])], ranges)

    def _messages(self, document: Sequence[int], facts: Sequence[Fact]) -> list[Message]:
        heading = [*self._heading(), *document, *self._after()]
        if not facts:
            return [*self._before(), Message("user", heading)]
        messages = self._before()
        for fact in facts:
            messages.append(Message("user", heading + self._text(fact.question)))
            messages.append(Message("assistant", self._text(fact.reply)))
            heading = []
        return messages

    def _text(self, text: str) -> list[int]:
        """Lengths are counted before the document is there: every text is tokenized once for all counts."""
        if text not in self.known:
            self.known[text] = self.format.text(text)
        return self.known[text]

    def _before(self) -> list[Message]:
        return [] if self.system is None else [Message("system", self._text(self.system))]

    def _heading(self) -> list[int]:
        return self._text(prompt("document").format(title=self.title, text="\0").split("\0")[0])

    def _after(self) -> list[int]:
        return self._text(prompt("document").format(title="", text="\0").split("\0")[1] + "\n\n")

    def _end(self, ids: Sequence[int], end: int) -> int:
        """``end`` moved over the line end that the template writes after an answer's last token."""
        tokenizer = self.format.tokenizer
        if ids[end - 1] != tokenizer.eos_token_id:
            raise ValueError("the chat template does not end answers with the tokenizer's end token")
        return end + 1 if end < len(ids) and tokenizer.decode([ids[end]]).isspace() else end


@dataclass(slots=True)
class Builder:
    """Builds examples of exact lengths from books; the same state of the generator gives the same example."""

    tokenizer: Any
    books: Sequence[Book]
    format: ChatFormat = field(init=False)

    def __post_init__(self) -> None:
        self.format = ChatFormat(self.tokenizer)

    def plain(self, rng: random.Random, length: int) -> Example:
        """Running text of one or more books from a random place."""
        return Example(self._text(rng, rng.choice(self.books), length), [])

    def prompt(self, rng: random.Random, length: int) -> list[int]:
        """``length`` tokens of a conversation up to its first question: the question's ids may follow."""
        book = rng.choice(self.books)
        talk = Talk(self.format, _system(rng), book.title)
        return talk.prefix(self._text(rng, book, length - len(talk.prefix([]))))

    def planted(self, rng: random.Random, length: int, questions: int, split: str = "train") -> Example:
        """A conversation of ``length`` tokens about one document: ``questions`` questions and answers."""
        pages = rng.randint(*PAGE_TOKENS) if rng.random() < PAGED_SHARE else None
        book = rng.choice(self.books)
        talk = Talk(self.format, _system(rng), book.title)
        facts = make_facts(rng, questions, _kinds(pages), split)
        # Page numbers are known only after planting; one digit is the least, the rest is cut off the end.
        room = length - len(talk.whole([], [fact.on_page(1) for fact in facts]).ids)
        present = [fact for fact in facts if fact.sentences]
        where = depths(rng, len(present))
        paragraphs = self._paragraphs(rng, book)
        document, told = plant(rng, paragraphs, present, where, self.format.text, room, pages)
        asked = [*told, *(fact for fact in facts if not fact.sentences)]
        rng.shuffle(asked)
        surplus = len(talk.whole([], asked).ids) + len(document) - length
        return talk.whole(document[: len(document) - surplus], asked)

    def reported(self, rng: random.Random, length: int, questions: int) -> Example:
        """Like ``planted``, about reports on some subjects that stand in a book or before it.

        Raises ValueError where ``length`` does not hold them.
        """
        book = rng.choice(self.books)
        talk = Talk(self.format, _system(rng), book.title)
        told = list(reports(rng, max(1, min(MOST_REPORTS, length // REPORT_TOKENS))))
        asked = _about(rng, told, questions)
        room = length - len(talk.whole([], asked).ids)
        return talk.whole(self._telling(rng, told, self._paragraphs(rng, book), room), asked)

    def _telling(
        self, rng: random.Random, told: Sequence[Report], paragraphs: Iterator[Sequence[int]], room: int
    ) -> list[int]:
        """``room`` tokens of text with the reports whole in it."""
        pieces = Pieces(self.format.text)
        parts = [[token for text in each.paragraphs for token in pieces.piece(text)] for each in told]
        free = room - sum(map(len, parts))
        if free < 0:
            raise ValueError(f"{room} tokens do not hold {len(told)} reports")
        together = rng.random() < TOGETHER_SHARE
        places = sorted(0 if together else rng.randrange(free + 1) for _ in parts)
        document: list[int] = []
        text = 0  # tokens of the book in it
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
    ) -> Prompted:
        """A session's prompt about a document with ``facts`` at the depths ``where``, up to the question.

        The prefix has ``length`` tokens; the suffix of a question comes on top of them. The planted facts
        come back in the order of their places, those that are ``absent`` behind them.
        """
        book = rng.choice(self.books)
        talk = Talk(self.format, prompt("system"), book.title)
        room = length - len(talk.prefix([]))
        paragraphs = self._paragraphs(rng, book)
        document, told = plant(rng, paragraphs, facts, where, self.format.text, room, page_tokens)
        asked = [*told, *absent]
        return Prompted(talk.prefix(document), [talk.suffix(fact.question) for fact in asked], asked)

    def pair(
        self, rng: random.Random, length: int, fact: Fact, depth: float, others: Sequence[Fact] = ()
    ) -> tuple[list[int], list[int], list[int]]:
        """Prefix (``length`` tokens), question and reply for one fact among ``others`` at random depths."""
        facts = [fact, *others]
        where = [depth, *(rng.random() for _ in others)]
        made = self.prompted(rng, length, facts, where)
        asked = next(i for i, told in enumerate(made.facts) if told.question == fact.question)
        return made.prefix, made.suffixes[asked], self.format.text(fact.reply)

    def _text(self, rng: random.Random, book: Book, length: int) -> list[int]:
        ids: list[int] = []
        for paragraph in self._paragraphs(rng, book):
            ids += paragraph
            if len(ids) >= length:
                break
        return ids[:length]

    def _paragraphs(self, rng: random.Random, book: Book) -> Iterator[Sequence[int]]:
        """Endless text: ``book`` from its start or a random place, then whole books in random order."""
        start = 0 if rng.random() < WHOLE_SHARE else rng.randrange(len(book.paragraphs))
        yield from book.paragraphs[start:]
        while True:
            yield from rng.choice(self.books).paragraphs


def _about(rng: random.Random, told: Sequence[Report], questions: int) -> list[Fact]:
    """Questions about reports, in any order; their share of absent things is that of planted documents."""
    absent = min(round(questions * ABSENT_SHARE), sum(len(report.absent) for report in told))
    there = [fact for report in told for fact in report.told]
    asked = rng.sample(there, min(questions - absent, len(there)))
    asked += rng.sample([fact for report in told for fact in report.absent], absent)
    rng.shuffle(asked)
    return asked


def depths(rng: random.Random, count: int) -> list[float]:
    """Depths with emphasis on the far start of a document; one lies at the very beginning."""
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
    """Kinds to draw from; "absent" appears often enough to be drawn in its share of cases."""
    # Two steps are missed most.
    kinds = [kind for kind in (*PLANTED, "two-step") if page_tokens or kind != "page"]
    many = 20
    absent = round(ABSENT_SHARE / (1 - ABSENT_SHARE) * len(kinds) * many)
    return kinds * many + ["absent"] * absent
