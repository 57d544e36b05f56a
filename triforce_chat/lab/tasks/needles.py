"""Insertion of facts into running text at chosen depths, optionally with page marks."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from triforce_chat.lab.tasks.books import Encode, PieceTokenizer
from triforce_chat.lab.tasks.facts import Fact

APPENDABLE = 40  # tokens; shorter paragraphs count as headings, and no sentence is appended to them
APPENDED_SHARE = (
    0.5  # of the sentences that are appended to a paragraph where possible; the others stand alone
)
TAIL = 64  # fewest tokens after the last inserted sentence


def insert_facts(
    rng: random.Random,
    paragraphs: Iterable[Sequence[int]],
    facts: Sequence[Fact],
    depths: Sequence[float],
    encode: Encode,
    length: int,
    page_tokens: int | None = None,
) -> tuple[list[int], list[Fact]]:
    """Build a document of ``length`` tokens with ``facts`` at ``depths`` (fractions of it, in [0, 1)).

    A fact is inserted at the end of the paragraph nearest to its depth; a second sentence goes to a random depth
    of its own. With ``page_tokens``, a line ``[page N]`` starts each page of about that many tokens. Returns the
    ids and the facts in the order of their first sentences; those of kind "page" then have answers. Raises
    ``ValueError`` when the paragraphs are too short, ``length`` is too small for the facts, or a fact asks for
    a page and the document has no page marks.
    """
    if page_tokens is None and any(fact.kind == "page" for fact in facts):
        raise ValueError("a fact asks for its page, but the document has no page marks")
    pieces = PieceTokenizer(encode)
    marks = _PageMarks(pieces, page_tokens, length)
    items = _items(rng, facts, depths, pieces, length, marks.cost)
    document = _DocumentBuilder(rng, length, deque(items), marks, pieces.piece(""))
    for paragraph in paragraphs:
        if document.take(paragraph):
            return document.ids, document.inserted
    raise ValueError("the paragraphs are shorter than the document should be")


@dataclass(frozen=True, slots=True)
class _Item:
    """A sentence and the position, in tokens, where it belongs."""

    position: int
    fact: Fact | None  # None for the second sentence of a fact
    alone: list[int]  # ids as a paragraph of its own
    attached: list[int]  # ids at the end of a paragraph
    cost: int  # most tokens that it takes, including a page mark before it


def _items(
    rng: random.Random,
    facts: Sequence[Fact],
    depths: Sequence[float],
    pieces: PieceTokenizer,
    length: int,
    mark: int,
) -> list[_Item]:
    items = []
    for fact, depth in zip(facts, depths, strict=True):
        for i, sentence in enumerate(fact.sentences):
            position = int((rng.random() if i else depth) * length)
            alone, attached = pieces.piece(sentence), pieces.piece(" " + sentence)
            cost = max(len(alone), len(attached)) + mark
            items.append(_Item(position, None if i else fact, alone, attached, cost))
    return sorted(items, key=lambda item: item.position)


class _PageMarks:
    """Page marks of a document of ``length`` tokens; without ``page_tokens`` there are none."""

    def __init__(self, pieces: PieceTokenizer, page_tokens: int | None, length: int) -> None:
        self.pieces, self.page_tokens = pieces, page_tokens
        self.page, self.start = 0, 0
        self.cost = 0 if page_tokens is None else len(self._mark(length))

    def at(self, position: int) -> list[int]:
        """The ids of the mark if a new page starts at ``position``, else none."""
        if self.page_tokens is None or (self.page and position - self.start < self.page_tokens):
            return []
        self.page, self.start = self.page + 1, position
        return self._mark(self.page)

    def _mark(self, page: int) -> list[int]:
        return self.pieces.piece(f"[page {page}]", "\n")


@dataclass(slots=True)
class _DocumentBuilder:
    """Appends paragraphs, with the sentences between them, until the document is full."""

    rng: random.Random
    length: int
    items: deque[_Item]
    marks: _PageMarks
    gap: list[int]
    ids: list[int] = field(default_factory=list)
    inserted: list[Fact] = field(default_factory=list)
    reserve: int = 0  # tokens kept free for the sentences not yet inserted
    joinable: bool = False  # true if a sentence may be appended to the last paragraph

    def __post_init__(self) -> None:
        self.reserve = sum(item.cost for item in self.items)
        if self.reserve + self.marks.cost + TAIL > self.length:
            raise ValueError(f"{self.length} tokens are too few for {len(self.items)} sentences")

    def take(self, paragraph: Sequence[int]) -> bool:
        """Append a paragraph after the sentences that belong before it; True when the document is full."""
        while self.items and self._belongs_before(paragraph):
            self._insert(self.items.popleft())
        self._add(self.marks.at(len(self.ids)))
        self._add(paragraph)
        self.joinable = len(paragraph) >= APPENDABLE and list(paragraph[-len(self.gap) :]) == self.gap
        return len(self.ids) == self.length

    def _belongs_before(self, paragraph: Sequence[int]) -> bool:
        """True if the next sentence is nearer to the paragraph's start than to its end, or has no room after it."""
        end = len(self.ids) + self.marks.cost + len(paragraph)
        middle = len(self.ids) + len(paragraph) // 2
        return self.items[0].position <= middle or end + self.reserve + TAIL > self.length

    def _insert(self, item: _Item) -> None:
        if self.joinable and self.rng.random() < APPENDED_SHARE:
            del self.ids[-len(self.gap) :]
            self._add(item.attached)
        else:
            self._add(self.marks.at(len(self.ids)))
            self._add(item.alone)
        self.joinable = False
        self.reserve -= item.cost
        if item.fact:
            self.inserted.append(item.fact.on_page(self.marks.page))

    def _add(self, ids: Sequence[int]) -> None:
        self.ids += ids[: self.length - len(self.ids)]
